"""The state backend ``heap-cow``: Python objects in copy-on-write hash maps, with asynchronous snapshots."""
