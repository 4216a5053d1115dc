"""The rows that an operator yields, and the ways to run it: iterate, a table, a frame, files, a callback."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyedstate.local.run.chain import Chain
from keyedstate.local.run.elements import Element, Prepare, Restored
from keyedstate.local.run.job import Job
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.streams.explain import explained
from keyedstate.local.streams.progress import with_progress
from keyedstate.runtime.rows import iterate_rows
from keyedstate.runtime.side_outputs import MAIN


class ResultStream:
    """The rows that an operator yields, computed when they are read; made by `KeyedStream.process`.

    Each way to read them is a run.  Where the operators keep state, a run continues from the last checkpoint,
    publishes one at least every ``checkpoint.interval`` and one at its end, and Ctrl-C stops it at a
    checkpoint.  A run that takes longer shows its progress on a terminal.  The rows may be the input of
    another operator: ``keyed(result, "carrier", uid="per-carrier")``.

    An operator with side outputs yields the same rows as on Spark: a column ``output``, and a struct column
    for each output; `to_tables` separates them.
    """

    def __init__(self, plan: OperatorPlan, *, drains: bool = False) -> None:
        self._plan = plan
        #: Whether all event-time timers fire when the input is over, although state is kept.
        self.drains = drains

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._plan.outputs.schema

    @property
    def plan(self) -> OperatorPlan:
        """The operator; for `keyedstate.local` itself."""
        return self._plan

    def drain(self) -> ResultStream:
        """Return the same rows, and those of all event-time timers, which fire when the input is over.

        Without it timers and windows stay open for the rows of a later run.  With it, a later row of a window
        that has fired opens the window again.
        """
        return ResultStream(self._plan, drains=True)

    def explain(self) -> str:
        """Return what would run: operators, inputs, keys, states, backend, checkpoints."""
        return explained(self._plan)

    # -- runs -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Run, and yield rows as named tuples, with ``as_dict()``; raises as `batches`."""
        for batch in self.batches():
            yield from iterate_rows(batch.schema.names, batch.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Run, and yield rows as Arrow batches as soon as they are there.

        The rows since the last checkpoint come again after a run that was killed.

        Raises
        ------
        UserFunctionError, OutputTypeError
            Where the function raises or yields a row that is not of the declared schema.
        SourceError
            Where a source has other rows than declared.
        CheckpointError, StateError
            Where state cannot be written or restored.
        KeyboardInterrupt
            After the checkpoint at which Ctrl-C stopped the run.
        """
        with contextlib.closing(self._elements()) as elements:
            for element in elements:
                if isinstance(element, pa.RecordBatch):
                    yield element

    def to_table(self) -> pa.Table:
        """Run, and return all rows as one Arrow table; raises as `batches`.

        The rows are in memory until the end, where the only checkpoint is published: a run that fails or is
        stopped leaves none, and the next one returns all rows.  That is so for `close` of the function too,
        which comes before the checkpoint.
        """
        return pa.Table.from_batches(self._all(), self.schema)

    def to_tables(self) -> dict[str, pa.Table]:
        """Run, and return a table for ``"main"`` and for each side output; raises as `batches`."""
        outputs = self._plan.outputs
        found: dict[str, list[pa.RecordBatch]] = {MAIN: [], **{name: [] for name in outputs.sides}}
        for batch in self._all():
            for name, rows in outputs.separate(batch):
                found[name].append(rows)
        schemas = {MAIN: outputs.main.schema, **{name: side.schema for name, side in outputs.sides.items()}}
        return {name: pa.Table.from_batches(rows, schemas[name]) for name, rows in found.items()}

    def to_pandas(self) -> Any:
        """Run, and return all rows as a frame of pandas, which must be installed; raises as `batches`."""
        return self.to_table().to_pandas()

    def write_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Run, and write the rows into Parquet files of a folder on a local disk; raises as `batches`.

        Where the state is kept, the rows of a checkpoint appear when it is published: after any failure and
        restart each row is there once, as long as all runs write to the same folder.  Otherwise they appear
        when the run is over.

        Raises
        ------
        TargetExistsError
            Where the folder has rows of another run, and the state is not kept.
        OSError
        """
        # Only this sink pays for the import.
        from keyedstate.local.sinks.parquet import write_parquet

        keeps_state = self._plan.folder is not None
        # Closed also while an error is looked at: its traceback would keep the run open.
        with contextlib.closing(self._elements()) as elements:
            write_parquet(with_progress(elements), Path(folder), self.schema, keeps_state=keeps_state)

    def for_each(self, function: Callable[[pa.Table, int], object]) -> None:
        """Run, and call a function with the rows of each epoch and its number, as ``foreachBatch`` does.

        It is called before the checkpoint of the epoch is published.  So after a failure it is called again
        with the same number, and the rows since the checkpoint before: write them so that they replace those
        of that number.  A run that keeps no state has one epoch, 0.  Raises as `batches`, and what the
        function raises.
        """
        waiting: list[pa.RecordBatch] = []
        with contextlib.closing(self._elements()) as elements:
            for element in with_progress(elements):
                if isinstance(element, pa.RecordBatch):
                    waiting.append(element)
                elif isinstance(element, Prepare):
                    function(pa.Table.from_batches(waiting, self.schema), element.epoch)
                    waiting = []
                elif isinstance(element, Restored):
                    waiting = []
        if self._plan.folder is None:
            function(pa.Table.from_batches(waiting, self.schema), 0)

    def _all(self) -> list[pa.RecordBatch]:
        """Run, and return all rows; those that a restarted task repeats are there once."""
        found: list[pa.RecordBatch] = []
        with contextlib.closing(self._elements(all_or_nothing=True)) as elements:
            for element in with_progress(elements):
                if isinstance(element, pa.RecordBatch):
                    found.append(element)
                elif isinstance(element, Restored):
                    found.clear()
        return found

    def _elements(self, *, all_or_nothing: bool = False) -> Generator[Element, None, None]:
        chain = Chain.of(self._plan)
        if not chain.has_several_tasks:
            return Job(chain, drain=self.drains, all_or_nothing=all_or_nothing).elements()
        # Only runs with several processes pay for the import.
        from keyedstate.local.parallel.restart import restarted

        return restarted(chain, drain=self.drains, all_or_nothing=all_or_nothing)
