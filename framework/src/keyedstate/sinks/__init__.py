"""Sinks for results that change: rows are written so that they replace those of the same key.

::

    sink = UpsertSink(lambda: sqlite3.connect("prices.db"), "prices", keys=["category"], row_kind="kind")

    changes.writeStream.foreachBatch(sink).start()  # on Spark
    changes.for_each(sink)  # in a local run
"""

from keyedstate.sinks.delta import DeltaSink
from keyedstate.sinks.upsert import UpsertSink

__all__ = ["DeltaSink", "UpsertSink"]
