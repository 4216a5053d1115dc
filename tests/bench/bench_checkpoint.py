"""What checkpoints cost: deltas and full snapshots, rows meanwhile, restores of chains and of ranges.

    python tests/bench/bench_checkpoint.py [--entries N ...] [--backends NAME ...] [--only PART ...]

Every measurement is a median over interleaved rounds, and every ratio is to something in the same run:

- changes: an epoch that changed 0.1 %, 1 %, 10 % and all of the entries, written as a delta, against the
  full snapshot written: how long the task is blocked, how long it takes in all, bytes;
- beside: rows processed in a second while a full snapshot is written in the background, against without;
- restore: from a full snapshot and ten deltas of 1 %, against from the full snapshot alone;
- ranges: by one task of 1, 2, 4 and 8, against by the only one, in time and in bytes that were read.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import ALL, BACKENDS, GROUPS, Keys, medians, open_backend

from keyedstate import types
from keyedstate.checkpoint.format.delta import write_delta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import ValueState
from keyedstate.state.operator.backend import OperatorStateBackend

RATES = (0.001, 0.01, 0.1, 1.0)
TOTAL = ValueState("total", types.INT64)


@dataclass
class Line:
    """One line of the report: a figure, what it is compared with, their ratio, and what was asked for."""

    part: str
    what: str
    figure: str
    floor: str
    ratio: float | None
    limit: str = ""

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        return f"{self.part:8} {self.what:58} {self.figure:>16} {self.floor:>26} {ratio:>7} {self.limit}"


class Work:
    """A keyed backend full of entries, and the folder that its files go to."""

    def __init__(self, backend: str, keys: Keys, folder: Path) -> None:
        self.name = backend
        self.keys = keys
        self.folder = OperatorFolder(CheckpointStorage.open(folder), "bench")
        self.keyed = open_backend(backend, track_changes=True)
        self.numbers = itertools.count()
        self.epoch = 0
        self.random = random.Random(7)
        handle = self.keyed.get_state(TOTAL)
        handle.update_many(keys.keys, list(range(len(keys.keys))), key_groups=keys.groups)
        self.keyed.begin_epoch(0)

    @property
    def entries(self) -> int:
        return len(self.keys.keys)

    def change(self, rate: float) -> None:
        """Begin an epoch and change so many entries."""
        self.keyed.forget_changes(self.epoch - 1)
        self.epoch += 1
        self.keyed.begin_epoch(self.epoch)
        chosen = self.random.sample(range(self.entries), max(1, int(self.entries * rate)))
        self.keyed.get_state(TOTAL).update_many(
            [self.keys.keys[number] for number in chosen],
            [number + self.epoch for number in chosen],
            key_groups=[self.keys.groups[number] for number in chosen],
        )

    def path(self) -> str:
        return f"data/n{next(self.numbers)}.seg"

    def write_full_snapshot(self) -> tuple[float, float, SegmentFile]:
        """Return milliseconds held up and in all, and the file."""
        started = time.perf_counter()
        snapshot = self.keyed.snapshot(self.epoch)
        # A backend that cannot write in the background blocks the task until all is written.
        writer = SegmentWriter(self.folder.storage, self.path(), ALL)
        snapshot.run(writer)
        file = writer.finish()
        total = (time.perf_counter() - started) * 1e3
        return (snapshot.synchronous_ms if snapshot.asynchronous else total), total, file

    def write_changes(self) -> tuple[float, float, SegmentFile]:
        started = time.perf_counter()
        changes = self.keyed.changes_since(self.epoch - 1)
        held_up = (time.perf_counter() - started) * 1e3
        metas = {meta.name: meta for meta in self.keyed.metas()}
        file = write_delta(self.folder.storage, self.path(), ALL, metas, changes)
        for changed in changes.values():
            changed.release()
        total = (time.perf_counter() - started) * 1e3
        return (held_up if self.keyed.snapshots_asynchronously else total), total, file

    def metadata(self, full: SegmentFile, *deltas: SegmentFile) -> CheckpointMetadata:
        identity = TaskIdentity("bench", "query", "run", self.epoch, 0, 1, GROUPS, 0, "n")
        states = tuple(meta.to_json() for meta in self.keyed.metas())
        manifest = AttemptManifest(
            identity, ALL, self.name, "1", states, (full,), {}, 0, 0, None, 0, 0, 0, 0, 0, deltas=deltas
        )  # fmt: skip
        return CheckpointMetadata.of([manifest])

    def restore(
        self, metadata: CheckpointMetadata, key_groups: KeyGroupRange = ALL
    ) -> tuple[float, int, int]:
        """Return seconds, bytes read and entries."""
        gc.collect()
        before, started = _bytes_read(), time.perf_counter()
        handles = handles_for(metadata, self.folder.storage, key_groups)
        restored = open_backend(self.name, key_groups=key_groups, handles=handles)
        seconds, read = time.perf_counter() - started, _bytes_read() - before
        for handle in handles:
            handle.close()
        entries = restored.num_entries()
        restored.close()
        return seconds, read, entries

    def close(self) -> None:
        self.keyed.close()


def changes(work: Work, rounds: int) -> list[Line]:
    """Deltas of each rate against the full snapshot."""
    found: dict[Any, list[tuple[float, float, int]]] = {}
    for _ in range(rounds):
        for rate in (None, *RATES):
            work.change(rate or 0.001)
            gc.collect()
            held_up, total, file = work.write_full_snapshot() if rate is None else work.write_changes()
            found.setdefault(rate, []).append((held_up, total, file.bytes))
            work.folder.storage.delete_file(file.path)
    middle = {
        rate: [statistics.median(column) for column in zip(*rows, strict=True)]
        for rate, rows in found.items()
    }
    whole = middle[None]
    what = f"{work.name}, {work.entries:,} entries"
    lines = [
        Line("changes", f"{what}, whole: held up", f"{whole[0]:,.1f} ms", "", None),
        Line("changes", f"{what}, whole: in all", f"{whole[1]:,.0f} ms", "", None),
    ]
    for rate in RATES:
        held_up, total, size = middle[rate]
        of_time, of_bytes = ("at most 0.05", "at most 0.03") if rate == 0.01 else ("", "")
        lines += [
            Line("changes", f"{what}, {rate:.1%} changed: held up", f"{held_up:,.1f} ms",
                 f"whole {whole[0]:,.1f} ms", held_up / whole[0]),
            Line("changes", f"{what}, {rate:.1%} changed: in all", f"{total:,.1f} ms",
                 f"whole {whole[1]:,.0f} ms", total / whole[1], of_time),
            Line("changes", f"{what}, {rate:.1%} changed: bytes", f"{size:,.0f}",
                 f"whole {whole[2]:,.0f}", size / whole[2], of_bytes),
        ]  # fmt: skip
    return lines


def beside(work: Work, rounds: int, share: float = 0.1) -> list[Line]:
    """Rows in a second, one key after the other, with and without a full snapshot in the background."""
    if not work.keyed.snapshots_asynchronously:
        return []
    rules = FullSnapshotRules(max_deltas=10, min_bytes=0)
    _, _, full = work.write_full_snapshot()
    handle = work.keyed.get_state(TOTAL)
    # An epoch that changes most of the entries would give the full snapshot up and write the whole.
    rows = list(zip(work.keys.visits[: work.entries * 2 // 5], itertools.count(), strict=False))
    measured: dict[str, list[float]] = {"without": [], "with": [], "full snapshot": []}

    def process(until: Callable[[int], bool]) -> float:
        count, started = 0, time.perf_counter()
        for (group, key), number in itertools.cycle(rows):
            work.keyed.set_current_key(key, group)
            handle.update((handle.value() or 0) + number)
            count += 1
            if count % 1000 == 0 and until(count):
                break
        return count / (time.perf_counter() - started)

    for _ in range(rounds):
        work.change(0.001)
        gc.collect()
        deadline = time.perf_counter() + 3
        measured["without"].append(process(lambda _, deadline=deadline: time.perf_counter() > deadline))
        restore_point = work.metadata(full)
        nonce = f"w{next(work.numbers)}"
        identity = TaskIdentity("bench", "query", "run", work.epoch + 1, 0, 1, GROUPS, 0, nonce)
        writer = EpochWriter(work.keyed, OperatorStateBackend(), work.folder, rules, "zstd", share)
        work.epoch += 1
        writer.begin(identity, restore_point, SnapshotKind.DELTA_AND_FULL)
        (thread,) = [
            each for each in threading.enumerate() if each.name.startswith("keyedstate-full-snapshot")
        ]
        began = time.perf_counter()
        measured["with"].append(process(lambda _, thread=thread: not thread.is_alive()))
        measured["full snapshot"].append(time.perf_counter() - began)
        saved = writer.end()
        assert saved.full_snapshots[-1].failure is None and saved.full_snapshots[-1].background
        writer.close()
        for file in (*saved.segments, *saved.deltas):
            work.folder.storage.delete_file(file.path)
    middle = {name: statistics.median(values) for name, values in measured.items()}
    what = f"{work.name}, {work.entries:,} entries, full snapshot written in {middle['full snapshot']:.1f} s"
    without, with_base = middle["without"], middle["with"]
    return [
        Line("beside", what, f"{with_base:,.0f} rows/s", f"without {without:,.0f} rows/s",
             with_base / without, "at least 0.8")
    ]  # fmt: skip


def restore(work: Work, rounds: int) -> list[Line]:
    """Chains and ranges."""
    _, _, full = work.write_full_snapshot()
    deltas = []
    for _ in range(10):
        work.change(0.01)
        deltas.append(work.write_changes()[2])
    alone, chain = work.metadata(full), work.metadata(full, *deltas)
    ranges = {count: key_group_range_for(0, count, GROUPS) for count in (1, 2, 4, 8)}
    read: dict[int, int] = {}

    def seconds(metadata: CheckpointMetadata, count: int) -> Callable[[], float]:
        def run() -> float:
            took, read[count], entries = work.restore(metadata, ranges[count])
            assert 0 < entries <= work.entries
            return took

        return run

    measures = {"alone": seconds(alone, 1), "chain": seconds(chain, 1)}
    measures |= {f"1 of {count}": seconds(alone, count) for count in (2, 4, 8)}
    found = medians(measures, rounds)
    what = f"{work.name}, {work.entries:,} entries"
    floor = f"alone {found['alone']:.2f} s"
    lines = [
        Line("restore", f"{what}, full snapshot alone", f"{found['alone']:.2f} s", "", None),
        Line("restore", f"{what}, full snapshot and ten deltas of 1 %", f"{found['chain']:.2f} s", floor,
             found["chain"] / found["alone"]),
    ]  # fmt: skip
    for count in (2, 4, 8):
        took = found[f"1 of {count}"]
        lines += [
            Line("ranges", f"{what}, a task of {count}: time", f"{took:.2f} s", floor, took / found["alone"]),
            Line("ranges", f"{what}, a task of {count}: bytes read", f"{read[count]:,}",
                 f"all {full.bytes:,}", read[count] / full.bytes, f"about {1 / count:.3f}"),
        ]  # fmt: skip
    for file in (full, *deltas):
        work.folder.storage.delete_file(file.path)
    return lines


def _bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io has no rchar")


PARTS: dict[str, Callable[[Work, int], list[Line]]] = {
    "changes": changes,
    "beside": beside,
    "restore": restore,
}


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines: list[Line] = []
    for entries in arguments.entries:
        keys = Keys(entries)
        for backend in arguments.backends:
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.closing(Work(backend, keys, Path(folder))) as work,
            ):
                for part in arguments.only:
                    for line in PARTS[part](work, arguments.rounds):
                        sys.stdout.write(f"{line}\n")
                        sys.stdout.flush()
                        lines.append(line)
    if arguments.json is not None:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        document = {"machine": machine, "lines": [asdict(line) for line in lines]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
