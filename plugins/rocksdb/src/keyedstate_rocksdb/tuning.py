"""The options of RocksDB: a predefined set, then single options, then the user's own function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
)

from keyedstate_rocksdb.errors import OptionsFactoryError, UnknownChoiceError
from keyedstate_rocksdb.memory import SharedMemory, arena_block_bytes
from keyedstate_rocksdb.options import (
    FACTORY,
    MIB,
    PREDEFINED,
    TUNING,
)

#: Flink's ``RocksDBConfigurableOptions``, but a Bloom filter, as in Spark: each new key is looked up.
_DEFAULTS: dict[str, Any] = {
    "threads": 2,
    "open_files": -1,
    "log_bytes": 25 * MIB,
    "log_files": 4,
    "compaction": "level",
    "dynamic_levels": "false",
    "compression": "snappy",
    "target_file_bytes": 64 * MIB,
    "level_base_bytes": 256 * MIB,
    "write_buffer_bytes": 64 * MIB,
    "write_buffers": 2,
    "merged_buffers": 1,
    "block_bytes": 4 << 10,
    "block_cache_bytes": 8 * MIB,
    "bloom_bits": 10,
}
_DISK = {"threads": 4, "compaction": "level", "dynamic_levels": "true"}
#: Flink's ``PredefinedOptions``.
_PREDEFINED: dict[str, dict[str, Any]] = {
    "DEFAULT": {},
    "SPINNING_DISK_OPTIMIZED": _DISK,
    "SPINNING_DISK_OPTIMIZED_HIGH_MEM": {
        **_DISK,
        "target_file_bytes": 256 * MIB,
        "level_base_bytes": 1024 * MIB,
        "write_buffers": 4,
        "merged_buffers": 3,
        "block_bytes": 128 << 10,
        "block_cache_bytes": 256 * MIB,
    },
    "FLASH_SSD_OPTIMIZED": _DISK,
}
_STYLES = {
    "level": DBCompactionStyle.level,
    "universal": DBCompactionStyle.universal,
    "fifo": DBCompactionStyle.fifo,
}
_CODECS = {
    "none": DBCompressionType.none,
    "snappy": DBCompressionType.snappy,
    "lz4": DBCompressionType.lz4,
    "zlib": DBCompressionType.zlib,
    "zstd": DBCompressionType.zstd,
}
#: The part of a write buffer's bytes that its Bloom filter has: about 10 bits for an entry of 80 bytes.
_BUFFER_FILTER = 1 / 64
#: So many filters have the size for a buffer that takes the memory of all.
_FULL_FILTERS = 4
#: The part of a cache that the blocks of one look-up may take.
_LOOKED_UP = 1 / 4
#: The bytes of a partition of an index or filter.
_PARTITION_BYTES = 16 << 10
_TRUTH = {"true": True, "false": False}


class Tuning:
    """The options of one instance's database and its column families.

    Parameters
    ----------
    options : mapping
        The plugin's options by their full names.
    memory : SharedMemory or None
        None where each state has its own cache and buffers.

    Attributes
    ----------
    values : dict
        The values by the names of `TUNING`.
    memory : SharedMemory or None

    Raises
    ------
    UnknownChoiceError, OptionsFactoryError
    """

    def __init__(self, options: Mapping[str, Any], memory: SharedMemory | None) -> None:
        given = {name: options[option.name] for name, option in TUNING.items()}
        self.values: dict[str, Any] = {
            **_DEFAULTS,
            **_PREDEFINED[options[PREDEFINED.name]],
            **{name: value for name, value in given.items() if value is not None},
        }
        for name, known in (("compaction", _STYLES), ("compression", _CODECS), ("dynamic_levels", _TRUTH)):
            if self.values[name] not in known:
                raise UnknownChoiceError(TUNING[name].name, self.values[name], known)
        self.memory = memory
        self._factory = _factory(options[FACTORY.name])

    def database(self) -> Options:
        """Return the options of the database."""
        values, made = self.values, Options(raw_mode=True)
        made.create_if_missing(True)
        made.set_max_background_jobs(values["threads"])
        made.set_max_open_files(values["open_files"])
        made.set_max_log_file_size(values["log_bytes"])
        made.set_keep_log_file_num(values["log_files"])
        # Statistics are read by the plugin and not written to the log.
        made.set_stats_dump_period_sec(0)
        made.set_stats_persist_period_sec(0)
        made.set_manifest_preallocation_size(64 << 10)
        if self.memory is not None:
            made.set_write_buffer_manager(self.memory.write_buffers)
        return self._finished("", made)

    def column_family(self, state: str, new: int = 0) -> Options:
        """Return the options of a state's column family.

        `new` numbers the states that are opened together, from 1; 0 if there will be no write buffer.
        """
        values, made = self.values, Options(raw_mode=True)
        made.set_compaction_style(_STYLES[values["compaction"]]())
        made.set_level_compaction_dynamic_level_bytes(_TRUTH[values["dynamic_levels"]])
        made.set_compression_type(_CODECS[values["compression"]]())
        made.set_target_file_size_base(values["target_file_bytes"])
        made.set_max_bytes_for_level_base(values["level_base_bytes"])
        made.set_write_buffer_size(values["write_buffer_bytes"])
        made.set_max_write_buffer_number(values["write_buffers"])
        made.set_min_write_buffer_number_to_merge(values["merged_buffers"])
        if self.memory is not None:
            made.set_arena_block_size(
                arena_block_bytes(self.memory.mutable_bytes, values["write_buffer_bytes"])
            )
        blocks = BlockBasedOptions()
        blocks.set_block_size(values["block_bytes"])
        if self.memory is None:
            blocks.set_block_cache(Cache(values["block_cache_bytes"]))
        else:
            blocks.set_block_cache(self.memory.cache)
            # Otherwise they would not be part of the budget.
            blocks.set_cache_index_and_filter_blocks(True)
            blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
            # In partitions, so that a small cache need not read a filter of megabytes for one key (Flink's
            # ``state.backend.rocksdb.memory.partitioned-index-filters``).
            blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
            blocks.set_partition_filters(True)
            blocks.set_metadata_block_size(_PARTITION_BYTES)
            blocks.set_pin_top_level_index_and_filter(True)
        if values["bloom_bits"]:
            blocks.set_bloom_filter(values["bloom_bits"], False)
            made.set_memtable_whole_key_filtering(True)
            made.set_memtable_prefix_bloom_ratio(self._buffer_filter_ratio(new))
        made.set_block_based_table_factory(blocks)
        return self._finished(state, made)

    @property
    def looked_up_together(self) -> int:
        """How many keys may be looked up at once: the cache has their blocks until the look-up ends."""
        cache: int = self.values["block_cache_bytes"] if self.memory is None else self.memory.cache_bytes
        block: int = self.values["block_bytes"]
        return max(int(_LOOKED_UP * cache) // block, 1)

    def _buffer_filter_ratio(self, new: int) -> float:
        """Return how large the filter of a write buffer is to it, which counts what the buffer will hold."""
        buffer: int = self.values["write_buffer_bytes"]
        if not new:
            return 0.0
        if self.memory is None:
            return _BUFFER_FILTER
        # RocksDB makes the filter before the first row, so it must leave room for the buffers of all states.
        filled = self.memory.mutable_bytes * min(1.0, _FULL_FILTERS / (len(self.memory.spaces) + new))
        return _BUFFER_FILTER * min(buffer, filled) / buffer

    def _finished(self, what: str, made: Options) -> Options:
        if self._factory is not None:
            self._factory(what, made)
        return made


def _factory(name: str | None) -> Callable[[str, Options], object] | None:
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionsFactoryError(name, f"it cannot be imported ({error})") from error
    if not callable(found):
        raise OptionsFactoryError(name, "it is no function")
    return found  # type: ignore[no-any-return]
