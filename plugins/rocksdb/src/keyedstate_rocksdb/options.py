"""The options of the backend; those of RocksDB have the defaults that `tuning` names."""

from __future__ import annotations

from typing import Any

from keyedstate.config import ConfigOption, boolean, choice, fraction, integer, string
from keyedstate.ordered import SWEEP_ENTRIES
from keyedstate.tables import OVERLAP_THRESHOLD

BACKEND = "rocksdb"
MIB = 1 << 20

BATCH_ENTRIES = integer(
    "rocksdb.write-batch-entries",
    500,
    "Rows that are written to RocksDB in one batch; until then they are in memory.",
    low=100,
    high=1000,
)
BATCH_BYTES = integer(
    "rocksdb.write-batch-bytes",
    2 * MIB,
    "Bytes at which a batch is written before it has all its rows.",
    low=1,
)
INCREMENTAL = boolean(
    "rocksdb.incremental",
    False,
    "Whether full snapshots are RocksDB's own files, of which only new ones are uploaded; otherwise they are "
    "canonical files with all entries.",
)
RESTORE_OVERLAP = fraction(
    "rocksdb.restore-overlap-threshold",
    OVERLAP_THRESHOLD,
    "Where a restore has several full snapshots: the least fraction of a snapshot's key groups that the task "
    "must own for its files to be opened in place. Below it, rows are copied into an empty database.",
)
RESTORE_INGEST = boolean(
    "rocksdb.restore-ingest",
    True,
    "Whether rows that a restore copies from native full snapshots are written as table files that RocksDB "
    "ingests; otherwise they are written in batches.",
)
RESTORE_COMPACT = boolean(
    "rocksdb.compact-after-restore",
    False,
    "Whether a database is compacted in the background after native full snapshots were restored to other "
    "key groups, which frees the disk space of removed rows.",
)
MEMORY_BUDGET = integer(
    "rocksdb.memory-budget",
    None,
    "Bytes that all databases of a process share for block caches and write buffers, in addition to the "
    "managed memory. Not set, they share the part `state-backend` of the managed memory, as "
    "memory.managed-size and memory.weights say. With 0 each state has its own.",
    low=0,
)
WRITE_RATIO = fraction("rocksdb.memory-write-ratio", 0.5, "Fraction of the memory budget for write buffers.")
OBJECT_RATIO = fraction(
    "rocksdb.memory-object-ratio",
    0.5,
    "Fraction of the memory budget for a cache of entries as Python objects: an entry that is used again is "
    "neither read nor written. RocksDB gets the rest.",
)
SWEEP = integer(
    "rocksdb.expiry-sweep-entries",
    SWEEP_ENTRIES,
    "Entries of a state with a time to live that are checked at the end of an epoch to drop expired ones.",
    low=1,
)
SMALL_FILES = integer(
    "rocksdb.merge-small-files",
    0,
    "Number of files of a state at which they are merged before a native snapshot, if they have 50 kB or "
    "less on average: small checkpoints leave small files. 0 for never.",
    low=0,
)
PREDEFINED = choice(
    "rocksdb.predefined-options",
    "DEFAULT",
    ("DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED"),
    "Options of RocksDB for a kind of disk; options that are set one by one override them.",
)
METRICS = string(
    "rocksdb.metrics",
    None,
    "Names of RocksDB's properties and tickers that are added to the metrics of each epoch; see the page on "
    "RocksDB.",
    "names with commas between",
)
FACTORY = string(
    "rocksdb.options-factory",
    None,
    "A function that changes RocksDB's options last, called with the name of a state, empty for the "
    "database, and a rocksdict.Options.",
    "module:function",
)

#: The single options of RocksDB by their names in `tuning`; the text ends with the default.
TUNING: dict[str, ConfigOption[Any]] = {
    "threads": integer(
        "rocksdb.background-threads", None, "Threads that flush and compact in each database; 2.", low=1
    ),
    "open_files": integer(
        "rocksdb.max-open-files", None, "Files that a database keeps open; -1, all of them.", low=-1
    ),
    "log_bytes": integer(
        "rocksdb.log-file-size", None, "Bytes of a file of RocksDB's own log; 25 MiB.", low=1
    ),
    "log_files": integer("rocksdb.log-files", None, "Files of RocksDB's own log that are kept; 4.", low=1),
    "compaction": string(
        "rocksdb.compaction-style", None, "How files are merged; level.", "level, universal or fifo"
    ),
    "dynamic_levels": string(
        "rocksdb.dynamic-level-size",
        None,
        "Whether the sizes of levels follow the last one.",
        "true or false",
    ),
    "compression": string(
        "rocksdb.compression", None, "How blocks are compressed; snappy.", "none, snappy, lz4, zlib or zstd"
    ),
    "target_file_bytes": integer(
        "rocksdb.target-file-size", None, "Bytes of a file of level 1; 64 MiB.", low=1
    ),
    "level_base_bytes": integer("rocksdb.level-base-size", None, "Bytes of level 1; 256 MiB.", low=1),
    "write_buffer_bytes": integer(
        "rocksdb.write-buffer-size", None, "Bytes of a state's write buffer; 64 MiB.", low=1
    ),
    "write_buffers": integer("rocksdb.write-buffers", None, "Write buffers that a state may have; 2.", low=2),
    "merged_buffers": integer(
        "rocksdb.write-buffers-to-merge", None, "Write buffers that are flushed as one; 1.", low=1
    ),
    "block_bytes": integer("rocksdb.block-size", None, "Bytes of a block in a file; 4 KiB.", low=1),
    "block_cache_bytes": integer(
        "rocksdb.block-cache-size", None, "Bytes of a state's cache without a memory budget; 8 MiB.", low=1
    ),
    "bloom_bits": integer(
        "rocksdb.bloom-filter-bits",
        None,
        "Bits per key of a file's Bloom filter; 10. With 0 files and write buffers have none.",
        low=0,
    ),
}

OPTIONS: tuple[ConfigOption[Any], ...] = (
    BATCH_ENTRIES,
    BATCH_BYTES,
    INCREMENTAL,
    RESTORE_OVERLAP,
    RESTORE_INGEST,
    RESTORE_COMPACT,
    MEMORY_BUDGET,
    WRITE_RATIO,
    OBJECT_RATIO,
    SWEEP,
    SMALL_FILES,
    PREDEFINED,
    METRICS,
    FACTORY,
    *TUNING.values(),
)


def default_options() -> dict[str, Any]:
    """Return the defaults of all options by their full names, for a backend that opens a store of its own."""
    return {option.name: option.default for option in OPTIONS}
