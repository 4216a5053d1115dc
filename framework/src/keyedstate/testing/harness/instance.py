"""One parallel instance in a harness: a function over its states, as in a task of a Spark job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange, key_group_range_for
from keyedstate.runtime.rows import iterate_rows
from keyedstate.runtime.runners import KeyedOperator, OperatorSpec, keyed_operator
from keyedstate.runtime.side_outputs import MAIN
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.harness.plan import InstancePlan, copy_of
from keyedstate.testing.harness.snapshot import HarnessSnapshot


class HarnessInstance:
    """One instance over its key groups, empty or restored from a snapshot.

    Attributes
    ----------
    key_groups : KeyGroupRange
    backend : KeyedStateBackend
        The keyed state.
    operator_states : OperatorStateBackend
        The operator and broadcast state.
    function : KeyedProcessFunction or VectorizedProcessFunction
        The copy that runs in the present epoch; its states are attributes of it.
    """

    def __init__(
        self, plan: InstancePlan, index: int, parallelism: int, snapshot: HarnessSnapshot | None
    ) -> None:
        self._plan = plan
        self._index = index
        self._parallelism = parallelism
        self._operator: KeyedOperator | None = None
        self.function = plan.function
        self.key_groups: KeyGroupRange = key_group_range_for(index, parallelism, plan.max_parallelism)
        self.operator_states = OperatorStateBackend(
            () if snapshot is None else snapshot.operator_state(index, parallelism),
            generic_types=plan.chosen.generic_types,
        )
        with contextlib.ExitStack() as files:
            handles = () if snapshot is None else files.enter_context(snapshot.handles(self.key_groups))
            self.backend = KeyedStateBackend.open(
                plan.chosen,
                KeySpace(plan.rows.key_serializer, self.key_groups, plan.max_parallelism),
                handles,
                clock=plan.time.clock,
                event_time=plan.rows.have_event_time,
            )
        self.show_time()

    def show_time(self) -> None:
        """Show the present time to the states."""
        self._plan.time.show_to(self.backend)

    def begin_epoch(self, epoch: int) -> None:
        """Open a copy of the function."""
        self.function = copy_of(self._plan.function)
        operator = keyed_operator(
            self.function,
            self.backend,
            OperatorSpec(
                key_columns=self._plan.rows.key_columns,
                key_group_column=KEY_GROUP_COLUMN,
                output=self._plan.outputs.main,
                side_outputs=self._plan.outputs.sides,
                epoch=epoch,
                operator_states=self.operator_states,
                task=self._index,
                parallelism=self._parallelism,
                event_time=self._plan.rows.event_time,
                connected=self._plan.rows.connected,
            ),
        )
        operator.set_watermark_before(self._plan.time.watermark)
        try:
            operator.open()
        except BaseException:
            # The first error is the one to report.
            with contextlib.suppress(Exception):
                operator.close()
            raise
        self._operator = operator

    @property
    def rows_dropped(self) -> Mapping[str, int]:
        """Rows of the present epoch that were dropped, by reason."""
        return {} if self._operator is None else self._operator.rows_dropped

    def process(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Run the function over rows of this instance and return its output."""
        assert self._operator is not None
        try:
            return self._rows(self._operator.process_batch(batch))
        finally:
            self._plan.time.saw(self._plan.rows.largest_event_times(self._operator))
            # What a test does next has no event time.
            self.backend.current.timestamp = None
            self.show_time()

    def process_broadcast(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Run the function over rows of the broadcast side and return its output."""
        assert self._operator is not None
        return self._rows(self._operator.process_broadcast([batch]))

    def fire_timers(self) -> list[tuple[Any, ...]]:
        """Show the present time to the states, fire the due timers and return their output."""
        self.show_time()
        assert self._operator is not None
        try:
            return self._rows(self._operator.fire_timers())
        finally:
            self.backend.current.timestamp = None

    def end_input(self) -> list[tuple[Any, ...]]:
        """Fire all timers, as at the end of a bounded input, and return their output."""
        assert self._operator is not None
        return self._rows(self._operator.end_epoch(AtEnd.INPUT))

    def end_epoch(self) -> list[tuple[Any, ...]]:
        """End the epoch as a task does, with its due timers, close the function, and return the output."""
        operator, self._operator = self._operator, None
        if operator is None:
            return []
        try:
            return self._rows(operator.end_epoch())
        finally:
            self._plan.rows_dropped.update(operator.rows_dropped)
            operator.close()
            self.backend.current.timestamp = None

    def close(self) -> None:
        """Close the function, unless the epoch is over, and free everything."""
        operator, self._operator = self._operator, None
        try:
            if operator is not None:
                self._plan.rows_dropped.update(operator.rows_dropped)
                operator.close()
        finally:
            self.operator_states.close()
            self.backend.close()

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        """Return the rows that the function has yielded, and store those of side outputs."""
        found: list[tuple[Any, ...]] = []
        for batch in batches:
            for name, rows in self._plan.outputs.separate(batch):
                of_output = found if name == MAIN else self._plan.side_rows.setdefault(name, [])
                of_output += iterate_rows(rows.schema.names, rows.columns)
        return found
