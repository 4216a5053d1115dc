"""The options of the backend, and what RocksDB is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

from keyedstate.backend import OVERLAP_THRESHOLD
from keyedstate.config import ConfigOption, boolean, fraction, integer

BACKEND = "rocksdb"
MIB = 1 << 20

BATCH_ENTRIES = integer(
    "rocksdb.write-batch-entries",
    500,
    "Rows that are written to RocksDB in one batch; until then they are kept in memory.",
    low=100,
    high=1000,
)
BATCH_BYTES = integer(
    "rocksdb.write-batch-bytes",
    2 * MIB,
    "Size in bytes at which a batch is written before it has all its rows.",
    low=1,
)

INCREMENTAL = boolean(
    "rocksdb.incremental",
    False,
    "Whether bases of checkpoints are RocksDB's own files, of which only new ones are uploaded; otherwise "
    "they are canonical files, which hold everything anew.",
)
RESTORE_OVERLAP = fraction(
    "rocksdb.restore-overlap-threshold",
    OVERLAP_THRESHOLD,
    "Share of the key groups in a base that must be wanted for its files to be opened as they are, where a "
    "restore has several; below it their rows are copied into an empty database.",
)

OPTIONS: tuple[ConfigOption[Any], ...] = (BATCH_ENTRIES, BATCH_BYTES, INCREMENTAL, RESTORE_OVERLAP)

#: Flink's ``RocksDBConfigurableOptions``.
_INFO_LOG_BYTES, _INFO_LOG_FILES = 25 * MIB, 4
_WRITE_BUFFER_BYTES, _WRITE_BUFFERS = 64 * MIB, 2
_TARGET_FILE_BYTES, _LEVEL_BASE_BYTES = 64 * MIB, 256 * MIB
_BLOCK_BYTES, _BLOCK_CACHE_BYTES = 4 << 10, 8 * MIB


def database_options(options: Mapping[str, Any]) -> Options:
    """Return the options of a database."""
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_max_background_jobs(2)
    made.set_max_open_files(-1)
    made.set_max_log_file_size(_INFO_LOG_BYTES)
    made.set_keep_log_file_num(_INFO_LOG_FILES)
    # Statistics are asked for, not written into the log.
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    made.set_manifest_preallocation_size(64 << 10)
    return made


def column_options(options: Mapping[str, Any]) -> Options:
    """Return the options of a column family."""
    made = Options(raw_mode=True)
    made.set_compression_type(DBCompressionType.snappy())
    made.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    made.set_max_write_buffer_number(_WRITE_BUFFERS)
    made.set_min_write_buffer_number_to_merge(1)
    made.set_target_file_size_base(_TARGET_FILE_BYTES)
    made.set_max_bytes_for_level_base(_LEVEL_BASE_BYTES)
    blocks = BlockBasedOptions()
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    made.set_block_based_table_factory(blocks)
    return made
