"""One text file with the last metrics of each operator, in Prometheus' text format 0.0.4."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from keyedstate.metrics import EpochMetrics

#: Counted from one epoch to the next: fields of the record, and what they are.
COUNTERS = {
    "rows_in": "Rows that came in.",
    "rows_out": "Rows that were put out.",
    "written_bytes": "Bytes that were written of state.",
    "host_hits": "Partitions whose state a host had.",
    "host_catch_ups": "Partitions that a host brought up to date.",
    "restores": "Partitions whose state was restored from files.",
    "full_snapshots": "Full snapshots that were completed.",
}
#: As they are after the last epoch.
GAUGES = {
    "epoch": "The last epoch.",
    "partitions": "Tasks of the operator.",
    "files": "Files of the checkpoint.",
    "checkpoint_bytes": "Size of the files of the checkpoint.",
    "longest_chain": "The most deltas on a full snapshot.",
    "failed_full_snapshots": "Full snapshots that failed since the last completed one.",
}
#: Operators in the file; the one whose last epoch is oldest is dropped first.
OPERATORS_KEPT = 200


class TextFile:
    """Keeps the last metrics of operators, and writes them to a file.

    Parameters
    ----------
    path : Path
        The file, in an existing folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Every operator reports from a thread of its own.
        self._lock = threading.Lock()
        self._last: OrderedDict[tuple[str, str], EpochMetrics] = OrderedDict()
        self._totals: dict[tuple[str, str], Counter[str]] = {}
        self._dropped: dict[tuple[str, str], Counter[str]] = {}

    def report(self, metrics: EpochMetrics) -> None:
        """Add the metrics of one epoch and rewrite the file."""
        operator = (metrics.uid, metrics.query_id)
        with self._lock:
            before = self._last.get(operator)
            totals = self._totals.setdefault(operator, Counter())
            # An epoch that ran again is counted already.
            if before is None or metrics.epoch > before.epoch:
                totals.update({name: getattr(metrics, name) for name in COUNTERS} | {"epochs": 1})
                self._dropped.setdefault(operator, Counter()).update(metrics.rows_dropped)
            self._last[operator] = metrics
            self._last.move_to_end(operator)
            if len(self._last) > OPERATORS_KEPT:
                forgotten, _ = self._last.popitem(last=False)
                del self._totals[forgotten], self._dropped[forgotten]
            self._write()

    def _write(self) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            unfinished.write_text("".join(f"{line}\n" for line in self._lines()), encoding="utf-8")
            os.replace(unfinished, self._path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _lines(self) -> Iterator[str]:
        for name, text in {**COUNTERS, "epochs": "Epochs."}.items():
            yield from _head(f"{name}_total", "counter", text)
            for operator in self._last:
                yield _line(f"{name}_total", operator, self._totals[operator][name])
        yield from _head("rows_dropped_total", "counter", "Rows that windows dropped.")
        for operator in self._last:
            for why, rows in self._dropped[operator].items():
                yield _line("rows_dropped_total", operator, rows, why=why)
        for name, text in GAUGES.items():
            yield from _head(name, "gauge", text)
            for operator, metrics in self._last.items():
                yield _line(name, operator, getattr(metrics, name))
        yield from _head("completed_time_seconds", "gauge", "When the last checkpoint was complete.")
        for operator, metrics in self._last.items():
            yield _line("completed_time_seconds", operator, metrics.time_ms / 1000)
        yield from _head("watermark_seconds", "gauge", "The watermark, of operators that have one.")
        for operator, metrics in self._last.items():
            if metrics.watermark is not None:
                yield _line("watermark_seconds", operator, metrics.watermark / 1000)
        yield from _head("state_entries", "gauge", "Entries of a state.")
        for operator, metrics in self._last.items():
            for state, of_state in metrics.states.items():
                yield _line("state_entries", operator, of_state.entries, state=state)
        yield from _head("state_bytes", "gauge", "Bytes of a state in the files of the checkpoint.")
        for operator, metrics in self._last.items():
            for state, of_state in metrics.states.items():
                if of_state.bytes is not None:
                    yield _line("state_bytes", operator, of_state.bytes, state=state)
        yield from _head("phase_seconds", "gauge", "Time in a phase of the last epoch: of the slowest task.")
        for operator, metrics in self._last.items():
            for phase, times in metrics.phases.items():
                yield _line("phase_seconds", operator, times.max / 1000, phase=phase)
        yield from _head("state_latency_seconds", "gauge", "Sampled accesses to a state, by quantile.")
        for operator, metrics in self._last.items():
            for state, operations in metrics.latencies.items():
                for operation, sampled in operations.items():
                    quantiles = {"0.5": sampled.p50_us, "0.95": sampled.p95_us, "0.99": sampled.p99_us}
                    for quantile, microseconds in quantiles.items():
                        labels = {"state": state, "operation": operation, "quantile": quantile}
                        yield _line("state_latency_seconds", operator, microseconds / 1e6, **labels)
        # Neither counters nor gauges as a whole: that is for the engine to know.
        yield from _head("native", "untyped", "Metrics of the backend's own engine, by its names.")
        for operator, metrics in self._last.items():
            for metric, value in metrics.native.items():
                yield _line("native", operator, value, metric=metric)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP keyedstate_{name} {text}"
    yield f"# TYPE keyedstate_{name} {kind}"


def _line(name: str, operator: tuple[str, str], value: float, **labels: str) -> str:
    uid, query_id = operator
    labels = {"uid": uid, "query_id": query_id, **labels}
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"keyedstate_{name}{{{shown}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
