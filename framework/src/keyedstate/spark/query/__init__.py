"""Streaming queries on disk: Spark's checkpoint location, savepoints taken of it, forks, stopping."""
