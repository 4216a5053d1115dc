"""One parallel instance in a harness: what a task of a Spark job holds, a function over a keyed backend."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateHandle
from keyedstate.keygroups import KeyGroupRange
from keyedstate.plugins import Backend
from keyedstate.runtime import KeyedOperator, KeyedProcessFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.rows import iterate_rows
from keyedstate.state import KeyedStateBackend
from keyedstate.testing.harness.rows import KEY_GROUP_COLUMN
from keyedstate.types import TypeSerializer


@dataclass(frozen=True)
class InstancePlan:
    """What all instances of a harness have in common.

    Attributes
    ----------
    function : KeyedProcessFunction
        Never opened itself: every instance has a copy for each epoch, as in Spark.
    plugin : Backend
    options : mapping
        The plugin's options.
    generic_types : bool
        The option ``types.generic``.
    key_columns : tuple of str
    key_serializer : TypeSerializer
    output : OutputSchema
    max_parallelism : int
    """

    function: KeyedProcessFunction
    plugin: Backend
    options: Mapping[str, Any]
    generic_types: bool
    key_columns: tuple[str, ...]
    key_serializer: TypeSerializer[Any]
    output: OutputSchema
    max_parallelism: int


class HarnessInstance:
    """One instance over its key groups.

    Parameters
    ----------
    plan : InstancePlan
    key_groups : KeyGroupRange
    handles : sequence of StateHandle
        Snapshots to restore from.

    Attributes
    ----------
    key_groups : KeyGroupRange
    backend : KeyedStateBackend
    function : KeyedProcessFunction
        The copy that runs in the present epoch.
    """

    def __init__(
        self, plan: InstancePlan, key_groups: KeyGroupRange, handles: Sequence[StateHandle] = ()
    ) -> None:
        self._plan = plan
        self.key_groups = key_groups
        self.function = plan.function
        self._operator: KeyedOperator | None = None
        self.backend = KeyedStateBackend.open(
            plan.plugin,
            key_serializer=plan.key_serializer,
            key_groups=key_groups,
            max_parallelism=plan.max_parallelism,
            options=plan.options,
            handles=handles,
            generic_types=plan.generic_types,
        )

    def begin_epoch(self, epoch: int) -> None:
        """Open a copy of the function."""
        self.function = copy.deepcopy(self._plan.function)
        operator = KeyedOperator(
            self.function,
            self.backend,
            key_columns=self._plan.key_columns,
            key_group_column=KEY_GROUP_COLUMN,
            output=self._plan.output,
            epoch=epoch,
        )
        try:
            operator.open()
        except BaseException:
            # The first error is the one to report.
            with contextlib.suppress(Exception):
                operator.close()
            raise
        self._operator = operator

    def process(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Run the function over rows of this instance and return its output."""
        assert self._operator is not None
        return [
            row
            for out in self._operator.process_batch(batch)
            for row in iterate_rows(out.schema.names, out.columns)
        ]

    def end_epoch(self) -> None:
        """End the epoch as a task does: first for the backend, then for the function, which is closed."""
        operator, self._operator = self._operator, None
        if operator is not None:
            try:
                self.backend.end_epoch()
            finally:
                operator.close()

    def close(self) -> None:
        """Close the function, unless the epoch is over, and free everything."""
        operator, self._operator = self._operator, None
        try:
            if operator is not None:
                operator.close()
        finally:
            self.backend.close()
