"""RocksDB's own metrics, those that the user names (Flink's ``RocksDBNativeMetricOptions``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rocksdict import Options, Rdict

from keyedstate_rocksdb.errors import UnknownChoiceError
from keyedstate_rocksdb.options import METRICS

#: The properties of each column family.
PROPERTIES = (
    "num-immutable-mem-table",
    "mem-table-flush-pending",
    "compaction-pending",
    "background-errors",
    "cur-size-active-mem-table",
    "cur-size-all-mem-tables",
    "size-all-mem-tables",
    "num-entries-active-mem-table",
    "num-entries-imm-mem-tables",
    "num-deletes-active-mem-table",
    "num-deletes-imm-mem-tables",
    "estimate-num-keys",
    "estimate-table-readers-mem",
    "num-snapshots",
    "num-live-versions",
    "estimate-live-data-size",
    "total-sst-files-size",
    "live-sst-files-size",
    "estimate-pending-compaction-bytes",
    "num-running-compactions",
    "num-running-flushes",
    "actual-delayed-write-rate",
    "is-write-stopped",
    "block-cache-capacity",
    "block-cache-usage",
    "block-cache-pinned-usage",
    *(f"num-files-at-level{level}" for level in range(7)),
)
#: The tickers of a database, with RocksDB's names; they count from its opening on.
TICKERS = {
    "block-cache-hit": "block.cache.hit",
    "block-cache-miss": "block.cache.miss",
    "bloom-filter-useful": "bloom.filter.useful",
    "bloom-filter-full-positive": "bloom.filter.full.positive",
    "bloom-filter-full-true-positive": "bloom.filter.full.true.positive",
    "bytes-read": "bytes.read",
    "bytes-written": "bytes.written",
    "iter-bytes-read": "db.iter.bytes.read",
    "compaction-read-bytes": "compact.read.bytes",
    "compaction-write-bytes": "compact.write.bytes",
    "stall-micros": "stall.micros",
}
_TICKER = re.compile(r"^rocksdb\.(\S+) COUNT : ([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True)
class EngineMetrics:
    """What is asked for.

    Attributes
    ----------
    properties, tickers : tuple of str
    """

    properties: tuple[str, ...]
    tickers: tuple[str, ...]

    @classmethod
    def of(cls, names: str | None) -> EngineMetrics:
        """Read the option.

        Raises
        ------
        UnknownChoiceError
        """
        wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
        for name in wanted:
            if name not in PROPERTIES and name not in TICKERS:
                raise UnknownChoiceError(METRICS.name, name, (*PROPERTIES, *TICKERS))
        return cls(
            tuple(name for name in wanted if name in PROPERTIES),
            tuple(name for name in wanted if name in TICKERS),
        )

    def read(self, families: Mapping[str, Rdict], options: Options) -> dict[str, int]:
        """Return properties as ``<state>.<name>`` and tickers by their names.

        Parameters
        ----------
        families : mapping of str to Rdict
            The column families by their states.
        options : Options
            Of the database, as it was opened.
        """
        found = {
            f"{state}.{name}": rows.property_int_value(f"rocksdb.{name}") or 0
            for state, rows in families.items()
            for name in self.properties
        }
        if self.tickers:
            counts = dict(_TICKER.findall(options.get_statistics() or ""))
            found.update((name, int(counts.get(TICKERS[name], 0))) for name in self.tickers)
        return found
