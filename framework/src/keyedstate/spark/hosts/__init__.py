"""Hosts: state server processes beside Spark's workers, which keep partitions between epochs.

A host is a versioned cache.  It uses a cached partition only if a task's restore point names exactly that
version, and restores it from files otherwise: correctness never depends on the cache.
"""
