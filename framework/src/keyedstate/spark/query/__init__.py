"""Streaming queries: Spark's checkpoint location, savepoints, forks, stopping."""
