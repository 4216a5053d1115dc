"""PySpark's own daemon of Python workers, watched: the workers that it forks inherit the audit hook."""

from __future__ import annotations

from pyspark.daemon import manager

from faults import injection

if __name__ == "__main__":
    injection.install("worker")
    manager()
