"""Hosts: processes beside Spark's workers that keep partitions between epochs.

A host is a versioned cache.  What it keeps is used where a task's restore point names exactly that version,
and is restored from files where not: correctness never depends on it.

``launch`` starts hosts and ``folder`` is where their sockets lie; ``client`` is a task's side of a
connection, ``server`` the host's, and ``protocol`` what goes over it; ``residents`` is the cache.
"""
