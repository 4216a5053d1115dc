"""The state backend ``nested-map``: plain nested dicts with synchronous snapshots, simple on purpose."""
