"""The batch answer over the flights of a run, and how what the run left differs from it, key by key."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from faults.flight_log import (
    CHANGING,
    DELAY,
    DELAY_MS,
    DESTINATIONS,
    FIRST_FLIGHTS,
    FLIGHTS,
    GAP_MS,
    OPERATORS,
    WINDOWED,
)
from faults.operators.entry import END, HOUR_MS, Epochs, Operator
from faults.operators.table import TABLE
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import find_restore_point, handles_for
from keyedstate.checkpoint.reading.state_reader import reader_of
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: Flights, delay, and flights by destination: of one key.
Figures = tuple[int, int, dict[str, int]]
#: A key, and the start of a window in milliseconds.
Window = tuple[str | None, int]
#: A row of a changing result: its key, the id without its sign, the flights and the delay.
Change = tuple[str | None, int, int, int]
_SHOWN = 5


@dataclass
class Verdict:
    """How a run's output and state differ from the batch answer; empty lists where they do not.

    Attributes
    ----------
    lost, duplicated : list of str
        Rows and keys that count too little, and too much.
    keys : int
        Keys that were compared, of all operators.
    """

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    keys: int = 0

    @property
    def exact(self) -> bool:
        """Whether output and state are those of the batch answer."""
        return not self.lost and not self.duplicated


def judge(
    run: Path,
    state: str,
    operators: Iterable[str],
    settings: Mapping[str, str],
    *,
    with_output: bool = True,
    pause_after: int | None = None,
) -> Verdict:
    """Compare all that a run has put out, and the state that its next epoch would begin from.

    Parameters
    ----------
    run : Path
    state : str
        Path or URI of the folder with the operators' folders.
    operators : iterable of str
    settings : mapping
        Options for reading the state: the backend, and the plugin of its storage.
    with_output : bool, default True
        Whether the run has kept its output.
    pause_after : int, optional
        After so many epochs the query has ended, and was started again.
    """
    verdict = Verdict()
    files = list(map(pyarrow.parquet.read_table, sorted((run / "input").glob("*.parquet"))))
    flights = pa.concat_tables(files)
    output = _read_output(run / "output") if with_output else []
    for operator in operators:
        if operator in TABLE:
            ends = [pause_after or len(files), len(files)] if TABLE[operator].fires_at_end else []
            epochs = Epochs(files, ends)
            _judge_declared(verdict, operator, TABLE[operator], epochs, output if with_output else None)
            for uid, keys in TABLE[operator].state.items():
                with _restored(run, state, uid, Configuration(settings)) as restored:
                    _compare_keys(verdict, uid, set(keys(epochs)), restored)
            continue
        if operator in WINDOWED:
            windows = expected_windows(operator, files)
            verdict.keys += len(windows)
            if with_output:
                _compare_windows(verdict, operator, windows, output)
            with _restored(run, state, operator, Configuration(settings)) as restored:
                _compare_what_windows_left(verdict, operator, restored)
            continue
        if operator in CHANGING:
            final = expected_changes(operator, flights)
            verdict.keys += len({key for key, *_ in final})
            if with_output:
                _compare_rows(verdict, operator, final, output, of_changes=True)
            with _restored(run, state, operator, Configuration(settings)) as restored:
                _compare_keys(verdict, operator, {key for key, *_ in final}, restored)
            continue
        expected = batch_answer(flights, OPERATORS[operator])
        verdict.keys += len(expected)
        if with_output:
            of_operator = [row for row in output if row["operator"] == operator]
            _compare_output(verdict, operator, flights, expected, of_operator)
        _compare_state(
            verdict, operator, expected, _read_state(run, state, operator, Configuration(settings))
        )
    return verdict


def _judge_declared(
    verdict: Verdict,
    name: str,
    operator: Operator,
    epochs: Epochs,
    output: Sequence[dict[str, Any]] | None,
) -> None:
    expected = Counter({row: count for row, count in operator.answer(epochs).items() if row[0] != END})
    verdict.keys += len({key for key, *_ in expected})
    if output is not None:
        _compare_rows(verdict, name, expected, output, of_changes=operator.of_changes)


def judge_savepoint(verdict: Verdict, run: Path, operators: Iterable[str]) -> None:
    """Compare the savepoint that was taken of a run with the batch answer over the epochs that it is of."""
    place = run / "state" / "savepoint"
    try:
        savepoint = SavepointFolder.open(place)
        savepoint.verify()
    except CheckpointError as error:
        verdict.lost.append(f"the savepoint: {error}")
        return
    assert savepoint.spark is not None
    # Each epoch had one of the files.
    files = sorted((run / "input").glob("*.parquet"))[: savepoint.spark.epoch + 1]
    flights = pa.concat_tables(map(pyarrow.parquet.read_table, files))
    for operator in operators:
        if operator in CHANGING or operator in TABLE:
            continue  # it has no state of numbers
        expected = {key: count for key, (count, _, _) in batch_answer(flights, OPERATORS[operator]).items()}
        reader = reader_of(OperatorSnapshot.open(place, operator), FLIGHTS.name)
        found: dict[str | None, int] = {}
        for batch in itertools.chain.from_iterable(map(reader.read, reader.slices())):
            found |= zip(batch[OPERATORS[operator]].to_pylist(), batch["value"].to_pylist(), strict=True)
        low, high = [], []
        for key in expected.keys() | found.keys():
            if expected.get(key, 0) != found.get(key, 0):
                (high if found.get(key, 0) > expected.get(key, 0) else low).append(str(key))
        _add(verdict.lost, f"{operator}: savepoint of epoch {savepoint.spark.epoch}, state of", low)
        _add(verdict.duplicated, f"{operator}: savepoint of epoch {savepoint.spark.epoch}, state of", high)


def batch_answer(flights: pa.Table, key: str) -> dict[str | None, Figures]:
    """Return the figures of each key."""
    totals = flights.group_by(key).aggregate([("id", "count"), ("arr_delay", "sum")])
    destinations: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
    for row in flights.group_by([key, "dest"]).aggregate([("id", "count")]).to_pylist():
        destinations[row[key]][row["dest"]] = row["id_count"]
    return {
        row[key]: (row["id_count"], row["arr_delay_sum"] or 0, destinations[row[key]])
        for row in totals.to_pylist()
    }


def expected_changes(operator: str, flights: pa.Table) -> Counter[Change]:
    """Return the rows that are left when all changes have been made."""
    if operator == "changes":
        totals = batch_answer(flights, OPERATORS[operator])
        return Counter((key, 1, count, delay) for key, (count, delay, _) in totals.items())
    of_key: defaultdict[str | None, list[int]] = defaultdict(list)
    for key, flight in zip(flights[OPERATORS[operator]].to_pylist(), flights["id"].to_pylist(), strict=True):
        of_key[key].append(flight)
    return Counter(
        (key, flight + 1, rank, 0)
        for key, numbers in of_key.items()
        for rank, flight in enumerate(sorted(numbers)[:FIRST_FLIGHTS], 1)
    )


def expected_windows(operator: str, files: Sequence[pa.Table]) -> dict[Window, tuple[int, int]]:
    """Return the flights and the delay of each window, but for those of the end; an epoch had each file."""
    of_key: defaultdict[str | None, list[tuple[int, int]]] = defaultdict(list)
    watermark, latest = -(1 << 63), -(1 << 63)
    for file in files:
        times = file["ts"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
        keys, delays = file[OPERATORS[operator]].to_pylist(), file["arr_delay"].to_pylist()
        for time, key, delay in zip(times, keys, delays, strict=True):
            is_late = operator == "hours" and time - time % HOUR_MS + HOUR_MS - 1 <= watermark
            if key != END and not is_late:
                of_key[key].append((time, delay or 0))
        latest = max(latest, *times)
        watermark = latest - DELAY_MS[operator]
    windows: dict[Window, tuple[int, int]] = {}
    for key, rows in of_key.items():
        start, last = 0, -(1 << 63)
        for time, delay in sorted(rows):
            if operator == "hours":
                start = time - time % HOUR_MS
            elif time > last + GAP_MS:
                # Sessions that touch are one.
                start = time
            last = time
            flights, total = windows.get((key, start), (0, 0))
            windows[key, start] = flights + 1, total + delay
    return windows


def committed_epochs(run: Path) -> int:
    """Return how many epochs Spark has committed."""
    folder = run / "spark" / "commits"
    return 1 + max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def _compare_output(
    verdict: Verdict,
    operator: str,
    flights: pa.Table,
    expected: dict[str | None, Figures],
    rows: Sequence[dict[str, Any]],
) -> None:
    times = Counter(row["id"] for row in rows)
    missing = [flight for flight in flights["id"].to_pylist() if flight not in times]
    repeated = [flight for flight, count in times.items() if count > 1]
    _add(verdict.lost, f"{operator}: no output of flight", missing)
    _add(verdict.duplicated, f"{operator}: output several times of flight", repeated)
    seen: defaultdict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        seen[row["key"]].append((row["flights"], row["delay"]))
    low, high = [], []
    for key, (count, delay, _) in expected.items():
        found = sorted(seen[key])
        numbers = [number for number, _ in found]
        if numbers == list(range(1, count + 1)) and found[-1] == (count, delay):
            continue
        # The running count says which it is: a number that is there twice follows a state that forgot a row.
        (high if numbers and numbers[-1] > count else low).append(f"{key} ({numbers[-3:]} of {count})")
    _add(verdict.lost, f"{operator}: running count of", low)
    _add(verdict.duplicated, f"{operator}: running count of", high)


def _compare_windows(
    verdict: Verdict,
    operator: str,
    expected: dict[Window, tuple[int, int]],
    output: Sequence[dict[str, Any]],
) -> None:
    found: defaultdict[Window, list[tuple[int, int]]] = defaultdict(list)
    for row in output:
        if row["operator"] == operator and row["key"] != END:
            found[row["key"], row["id"]].append((row["flights"], row["delay"] or 0))
    low, high = [], []
    for window in expected.keys() | found.keys():
        wanted, there = expected.get(window, (0, 0)), found[window]
        if there != [wanted]:
            (high if sum(flights for flights, _ in there) > wanted[0] else low).append(
                f"{window} ({there} for {wanted})"
            )
    _add(verdict.lost, f"{operator}: window", low)
    _add(verdict.duplicated, f"{operator}: window", high)


def _compare_rows(
    verdict: Verdict,
    operator: str,
    expected: Counter[Change],
    output: Sequence[dict[str, Any]],
    *,
    of_changes: bool,
) -> None:
    found: Counter[Change] = Counter()
    for row in output:
        if row["operator"] == operator and row["key"] != END:
            id_, change = (abs(row["id"]), 1 if row["id"] > 0 else -1) if of_changes else (row["id"], 1)
            found[row["key"], id_, row["flights"], row["delay"] or 0] += change
    rows = expected.keys() | found.keys()
    _add(verdict.lost, f"{operator}: row", [row for row in rows if found[row] < expected[row]])
    _add(verdict.duplicated, f"{operator}: row", [row for row in rows if found[row] > expected[row]])


def _compare_keys(
    verdict: Verdict, operator: str, expected: set[str | None], restored: KeyedStateBackend | None
) -> None:
    if restored is None:
        verdict.lost.append(f"{operator}: there is no state")
        return
    found = {key for meta in restored.metas() for key, _ in restored.get_keys_and_namespaces(meta.name)}
    found.discard(END)
    _add(verdict.lost, f"{operator}: state of", sorted(map(str, expected - found)))
    _add(verdict.duplicated, f"{operator}: state of", sorted(map(str, found - expected)))


def _compare_what_windows_left(verdict: Verdict, operator: str, restored: KeyedStateBackend | None) -> None:
    """Nothing is to be left of windows that are over, neither rows nor timers."""
    if restored is None:
        verdict.lost.append(f"{operator}: there is no state")
        return
    for meta in restored.metas():
        left = {key for key, _ in restored.get_keys_and_namespaces(meta.name)} - {END}
        _add(verdict.duplicated, f"{operator}: still in {meta.name!r}", sorted(map(str, left)))


def _compare_state(
    verdict: Verdict, operator: str, expected: dict[str | None, Figures], found: dict[str | None, Figures]
) -> None:
    low, high = [], []
    for key in expected.keys() | found.keys():
        wanted, there = expected.get(key, (0, 0, {})), found.get(key, (0, 0, {}))
        if wanted != there:
            (high if there[0] > wanted[0] else low).append(f"{key} ({there[0]} of {wanted[0]})")
    _add(verdict.lost, f"{operator}: state of", low)
    _add(verdict.duplicated, f"{operator}: state of", high)


def _add(differences: list[str], what: str, items: Sequence[object]) -> None:
    if items:
        rest = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        differences.append(f"{what} {', '.join(map(str, items[:_SHOWN]))}{rest}")


def _read_output(folder: Path) -> list[dict[str, Any]]:
    log = folder / "_spark_metadata"
    files = _committed_files(log) if log.is_dir() else sorted(folder.glob("epoch-*.parquet"))
    # One by one and without the dataset's schema of the first: an epoch may have put out nothing.
    opened = map(pyarrow.parquet.ParquetFile, files)
    # Older versions of pyarrow cannot read a file without rows that has no row group.
    return [row for file in opened if file.num_row_groups for row in file.read().to_pylist()]


def _committed_files(log: Path) -> list[Path]:
    """Return the files that Spark's file sink has committed; other files do not count."""
    epochs = {int(path.name.split(".")[0]): path for path in log.iterdir() if path.name[0].isdigit()}
    compact = max((epoch for epoch, path in epochs.items() if path.suffix == ".compact"), default=0)
    entries = [
        json.loads(line)
        for epoch in sorted(epochs)
        if epoch >= compact
        for line in epochs[epoch].read_text().splitlines()[1:]
    ]
    return [Path(entry["path"].removeprefix("file://")) for entry in entries if entry["action"] == "add"]


def _read_state(run: Path, state: str, operator: str, config: Configuration) -> dict[str | None, Figures]:
    with _restored(run, state, operator, config) as restored:
        if restored is None:
            return {}
        figures = {}
        flights, delay, destinations = map(restored.get_state, (FLIGHTS, DELAY, DESTINATIONS))
        for key in list(restored.get_keys(FLIGHTS.name)):
            restored.set_current_key(key)
            figures[key] = (flights.value(), delay.value(), dict(destinations.items()))
        return figures


@contextlib.contextmanager
def _restored(
    run: Path, state: str, operator: str, config: Configuration
) -> Iterator[KeyedStateBackend | None]:
    """Give the state that the next epoch would begin from; None without one."""
    folder = OperatorFolder(CheckpointStorage.open(state, config), operator)
    owner = folder.read_owner()
    metadata = None
    if owner is not None:
        # Exactly what a task of the next epoch does, one that has all key groups.
        identity = TaskIdentity(
            uid=operator,
            query_id=owner.query_id,
            run_id=owner.runs[-1],
            epoch=committed_epochs(run),
            partition=0,
            parallelism=1,
            max_parallelism=owner.max_parallelism,
            attempt=0,
            nonce="answer",
        )
        metadata = find_restore_point(folder, identity)
    if owner is None or metadata is None:
        yield None
        return
    key_groups = KeyGroupRange(0, owner.max_parallelism - 1)
    registry = PluginRegistry(config)
    chosen = registry.choose()
    handles = handles_for(metadata, folder.storage, key_groups)
    try:
        restored = KeyedStateBackend.open(
            ChosenBackend(chosen, config.plugin_options(registry.options, chosen.name)),
            KeySpace(key_serializer_for([pa.string()]), key_groups, owner.max_parallelism),
            handles,
        )
    finally:
        for handle in handles:
            handle.close()
    with contextlib.closing(restored):
        yield restored
