"""The runner for one machine, without Spark: the same functions over tables, files, frames and iterables.

``keyed(rows, "user").process(function, "user string, views long").to_table()``. Importing this needs neither
PySpark nor Java.
"""

from keyedstate.local.sources.files import FileSource
from keyedstate.local.sources.rows import RowSource
from keyedstate.local.sources.source import Source, SourceChannel
from keyedstate.local.streams.connected import ConnectedStreams, connect
from keyedstate.local.streams.keyed import KeyedStream, keyed
from keyedstate.local.streams.read_state import read_state
from keyedstate.local.streams.result import ResultStream

__all__ = [
    "ConnectedStreams",
    "FileSource",
    "KeyedStream",
    "ResultStream",
    "RowSource",
    "Source",
    "SourceChannel",
    "connect",
    "keyed",
    "read_state",
]
