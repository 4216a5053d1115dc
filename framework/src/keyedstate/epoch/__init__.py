"""The epoch of one partition, from its restore point to its attempt in the checkpoint; no PySpark in it."""
