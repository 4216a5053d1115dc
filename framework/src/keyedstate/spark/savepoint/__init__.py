"""Savepoints of queries: created, edited, bootstrapped, and started from."""
