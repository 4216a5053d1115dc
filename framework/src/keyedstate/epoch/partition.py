"""One partition of an operator over its epochs: restored or continued, rows in, rows out, state written.

Each file of an attempt has a unique name, and is read only after the attempt finished and was acknowledged;
so an attempt may die at any point, or live on as a zombie.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.delta import read_changes
from keyedstate.checkpoint.format.manifest import AttemptManifest, HostAddress, StateOrigin, latest_inputs
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import write_attempt
from keyedstate.checkpoint.protocol.publication import finish_attempt
from keyedstate.epoch.configuration import configuration_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.epoch.event_time import inputs_at_start
from keyedstate.epoch.in_flight import has_rows_in_flight, put_rows_in_flight, take_rows_in_flight
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.epoch.restored_state import deltas_since, restore_keyed_state, restore_operator_state
from keyedstate.errors import RowsInFlightError
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import CorrectedClock

#: The share of a processor's time that a full snapshot in the background may take in a host.
_BACKGROUND_SHARE = 0.1
#: Changes of another process in one bulk update.
_CHANGES_AT_ONCE = 16_384


class Partition:
    """The state and the function of one partition, for one epoch or several.

    An epoch is `run` and then `finish`.  Where time moves forward within an epoch, it is `begin`, then
    `process` and `advance` in turn, `end` and `finish`. After an error only `close` may be called.

    The plan has a location. The state at the start of the first epoch is restored from files. Where the
    partition `stays`, further epochs may follow: the function stays open, and a full snapshot in the
    background continues, from one epoch to the next.

    Raises `FunctionTransportError`, `CheckpointError` where a file cannot be read, and `StateError` where the
    state does not fit the function.
    """

    def __init__(self, plan: PartitionPlan, start: EpochStart, *, stays: bool = False) -> None:
        assert plan.location is not None, "an operator that keeps no state has no epochs"
        self._plan = plan
        self._location = plan.location
        self._stays = stays
        self._origin = StateOrigin.FILES
        #: The manifest of the last epoch, which the state equals. None from the start of an epoch until its
        #: end is written.
        self._written: AttemptManifest | None = None
        with contextlib.ExitStack() as opened:
            track_changes = stays or start.kind is not SnapshotKind.FULL
            self._clock = CorrectedClock(start.clock.correction_ms)
            self._keyed = restore_keyed_state(plan, start, self._clock, track_changes=track_changes)
            opened.callback(self._keyed.close)
            self._operator_states = restore_operator_state(plan, start)
            opened.callback(self._operator_states.close)
            opened.callback(lambda: self._writer.close())
            self._begin_writer(start)
            self._begin_operator(start)
            self._closing = opened.pop_all()

    @property
    def watermark(self) -> int | None:
        """The watermark; None where the operator has no event time, or no row had any."""
        return self._watermark

    @property
    def version(self) -> str | None:
        """The nonce of the attempt that wrote the present state; None within an epoch."""
        return None if self._written is None else self._written.identity.nonce

    def _begin_writer(self, start: EpochStart) -> None:
        self._writer = EpochWriter(
            self._keyed,
            self._operator_states,
            start.folder,
            FullSnapshotRules.of(configuration_in_task(self._plan.settings)),
            self._location.compression,
            share=_BACKGROUND_SHARE if self._stays else 1.0,
        )

    def _begin_operator(self, start: EpochStart) -> None:
        identity = start.identity
        self._operator = self._plan.operator(
            self._keyed, self._operator_states, identity.partition, identity.epoch
        )

    def follow(self, start: EpochStart) -> bool:
        """Return whether the partition can run an epoch; if not, it has to be closed.

        It can if the epoch's checkpoint is the last one written here. If the checkpoint's chain extends that
        one, the deltas between them are applied. The first epoch of a run redistributes operator state, and
        so restores from files. Raises `CheckpointError` where a delta cannot be read.
        """
        point, written = start.restore_point, self._written
        if written is None or point is None or not start.continues_run:
            return False
        if point.parallelism != self._plan.parallelism or written.identity.epoch > point.epoch:
            return False
        part = point.parts[start.identity.partition]
        if part.identity == written.identity:
            self._origin = StateOrigin.HOST
        elif self._catch_up(start.folder, written, part):
            self._origin = StateOrigin.HOST_AND_DELTAS
            # A full snapshot in the background would contain the changes applied since it began; and the
            # function may have values of the state that are out of date.
            self._writer.close()
            self._begin_writer(start)
            self._operator.close()
            self._begin_operator(start)
        else:
            return False
        self._writer.folder = start.folder
        self._operator.begin_epoch(start.identity.epoch)
        return True

    def _catch_up(self, folder: OperatorFolder, written: AttemptManifest, part: AttemptManifest) -> bool:
        """Apply the deltas of a later checkpoint after the one written here."""
        missing = deltas_since(written, part)
        if missing is None or written.operator_state is not None or part.operator_state is not None:
            return False
        states = [StateMeta.from_json(dict(state)) for state in part.states]
        if not self._keyed.can_apply_changes(states):
            return False
        self._written = None
        changes = read_changes(folder.storage, missing, states)
        for state, of_state in groupby(changes, key=attrgetter("state")):
            while some := list(islice(of_state, _CHANGES_AT_ONCE)):
                self._keyed.apply_changes(state, some)
        return True

    def begin(self, start: EpochStart) -> None:
        """Begin an epoch, before its first row; `run` does it by itself."""
        self._written = None
        self._writer.begin(start.identity, start.restore_point, start.kind)
        self._restored = time.perf_counter()
        if self._keyed.latency is not None:
            # Reported with the epoch before.
            self._keyed.latency.forget()
        self._watermark = start.watermark
        if self._watermark is not None and self._plan.event_times:
            self._keyed.advance_watermark(self._watermark)
        self._clock.correction_ms = start.clock.correction_ms
        self._processing_time = start.processing_time()
        if start.batch_ms is not None:
            self._clock.fixed_ms = self._processing_time
        self._operator.set_processing_time(self._processing_time)
        self._operator.set_watermark_before(None if start.stored is None else start.stored.metadata.watermark)

    def run(
        self,
        start: EpochStart,
        broadcast_rows: Iterable[pa.RecordBatch],
        batches: Iterator[pa.RecordBatch],
    ) -> Generator[pa.RecordBatch, None, None]:
        """Run the function over the broadcast rows and then the keyed rows of an epoch, and yield its output.

        Raises `RowsInFlightError` where the state was restored from an unaligned checkpoint.
        """
        if has_rows_in_flight(self._operator_states):
            raise RowsInFlightError(self._location.uid)
        self.begin(start)
        at_end = AtEnd.DRAINED if start.drained else AtEnd.EPOCH
        yield from evaluate(
            self._operator,
            broadcast_rows,
            batches,
            self._follow_watermark(start),
            stays=self._stays,
            at_end=at_end,
        )

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over rows of the broadcast side; the epoch continues."""
        self._operator.open()
        yield from self._operator.process_broadcast(batches)

    def process(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over some keyed rows; the epoch continues."""
        self._operator.open()
        yield from self._operator.process_rows(batches)

    def process_rows_in_flight(self) -> Iterator[pa.RecordBatch]:
        """Process the rows of an unaligned checkpoint that its state does not contain yet."""
        rows = take_rows_in_flight(self._operator_states, self._keyed.key_groups)
        if rows:
            yield from self.process(rows)

    def advance(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Move time forward within the epoch, fire the timers that are due, and yield their output.

        Processing time is that of the clock; neither goes back.  Without event time the watermark is None.
        """
        if watermark is not None:
            self._watermark = watermark
            self._keyed.advance_watermark(watermark)
        self._processing_time = max(self._processing_time, self._clock())
        self._operator.set_processing_time(self._processing_time)
        self._operator.open()
        yield from self._operator.fire_timers()

    def end(self, at_end: AtEnd) -> Iterator[pa.RecordBatch]:
        """End the rows of the epoch and yield the last output; `finish` writes the state."""
        self._operator.open()
        yield from self._operator.end_epoch(at_end)

    def close_function(self) -> None:
        """Close the function, which gets no more rows, before the state of its last epoch is written.

        Raises `UserFunctionError` where the function does.
        """
        self._operator.close()

    def finish(
        self,
        start: EpochStart,
        host: HostAddress | None = None,
        task_executor: str | None = None,
        positions: Mapping[str, Any] | None = None,
        in_flight: Sequence[pa.RecordBatch] = (),
    ) -> Acknowledgement:
        """Write the state after the epoch and the attempt's manifest, and return what the driver gets.

        Rows `in_flight` are written too: they come before the positions, and are not in the state yet. Raises
        `CheckpointError`, `StateMigrationError` and `TooManyFailedSnapshotsError` as `EpochWriter.end`.
        """
        processed = time.perf_counter()
        put_rows_in_flight(self._operator_states, in_flight)
        files = self._writer.end(wait=not self._stays)
        take_rows_in_flight(self._operator_states, self._keyed.key_groups)
        written = time.perf_counter()
        manifest = replace(
            self._plan.manifest(start.identity, self._keyed, self._operator, files),
            watermark=self._watermark,
            processing_time=self._processing_time,
            clock_skew_ms=start.clock.skew_ms,
            inputs=self._inputs_after(start),
            write_ms=(written - processed) * 1000.0 - files.sync_ms,
            restore_ms=(self._restored - start.began) * 1000.0,
            process_ms=(processed - self._restored) * 1000.0,
            state_origin=self._origin,
            latencies={} if self._keyed.latency is None else self._keyed.latency.samples(),
            metrics=self._keyed.metrics(),
            host=host,
            task_executor=task_executor,
            positions=positions,
        )
        start.check()
        shared: Collection[str] = ()
        if start.restore_point is not None:
            # Those of all parts: a native full snapshot may share files of another part.
            shared = {path for part in start.restore_point.parts for path in part.kept_files}
        if self._location.published_by_tasks:
            path = finish_attempt(start.folder, manifest, shared, start.finished_before)
        else:
            path = write_attempt(start.folder, manifest, shared)
        self._written = manifest
        return Acknowledgement.of(path, manifest)

    def trim_memory(self, since: float) -> None:
        """Give back memory that other partitions of the process lack, between two epochs.

        The query has been unused for some seconds, which ended at a time by `time.monotonic`.
        """
        self._keyed.trim_memory(since)

    def close(self) -> None:
        """Close the function and release the state, even if the function's `close` raises UserFunctionError.

        Calling it again does nothing.
        """
        with self._closing:
            self._operator.close()

    def _follow_watermark(self, start: EpochStart) -> Iterator[pa.RecordBatch]:
        """Advance to the watermark that followed operators have in this epoch, after its rows."""
        mark = start.watermark_after_rows
        if mark is None or mark == self._watermark:
            return
        self._watermark = mark
        self._keyed.advance_watermark(mark)
        yield from self._operator.fire_timers()

    def _inputs_after(self, start: EpochStart) -> dict[str, tuple[int, int]]:
        """Return the largest event time and the time of the last row of each input after the epoch."""
        found = inputs_at_start(self._plan.event_times, self._processing_time)
        if start.stored is not None:
            found |= start.stored.metadata.inputs
        if not start.continues_run:
            # No input was idle while the query was stopped.
            found = {name: (event_time, self._processing_time) for name, (event_time, _) in found.items()}
        now, seen = self._processing_time, self._operator.largest_event_times.items()
        known = chain(found.items(), ((name, (event_time, now)) for name, event_time in seen))
        # A later time than now came from a wrong clock.
        return latest_inputs((name, (event_time, min(last, now))) for name, (event_time, last) in known)


def evaluate(
    operator: KeyedOperator,
    broadcast_rows: Iterable[pa.RecordBatch],
    batches: Iterator[pa.RecordBatch],
    after_rows: Iterable[pa.RecordBatch] = (),
    *,
    stays: bool = False,
    at_end: AtEnd = AtEnd.EPOCH,
) -> Iterator[pa.RecordBatch]:
    """Run an operator over all its rows, and close its function unless it `stays`; after an error always.

    `at_end` and `after_rows` are as in `KeyedOperator.process`.
    """
    try:
        operator.open()
        yield from operator.process_broadcast(broadcast_rows)
        yield from operator.process(batches, at_end, after_rows)
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(Exception):
            operator.close()
        raise
    if not stays:
        operator.close()
