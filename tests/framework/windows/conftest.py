"""A window operator over every backend, driven by hand as Flink's operator harness drives its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ManualClock
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import TimerServices
from keyedstate.windows.declaration.contents import AllRows, WindowContents
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.row.operator import TIMERS, WindowOperator

GROUPS = 16
ROW = types.row_of({"key": types.STRING, "value": types.INT64})
Output = tuple[Any, Any, int]


class Summed(ProcessWindowFunction):
    """Yields the key, the sum of the window's values and its last moment; what is reduced has one value."""

    def process(self, elements: Any, ctx: Any) -> Iterator[Output]:
        values = [row.value for row in elements] if isinstance(elements, list) else [elements.value]
        yield ctx.key, sum(values), ctx.window.max_timestamp


class Job:
    """One task with a window operator."""

    def __init__(
        self,
        backend: str,
        folder: Path,
        opened: ExitStack,
        definition: WindowDefinition,
        contents: WindowContents | None = None,
        function: ProcessWindowFunction | None = None,
    ) -> None:
        self._backend_name = backend
        self._folder = folder
        self._opened = opened
        self._storage = CheckpointStorage.open(str(folder))
        self._numbers = itertools.count()
        self.definition = definition
        self.contents = contents or AllRows()
        self.function = function or Summed()
        self.clock = ManualClock(0)
        self.out: list[Any] = []
        self.side: list[Any] = []
        self.late: list[Any] = []
        self._start(())

    def _start(self, handles: Any) -> None:
        chosen = backend_of(self._backend_name)
        self.backend = KeyedStateBackend.open(
            chosen,
            KeySpace(types.STRING, KeyGroupRange(0, GROUPS - 1), GROUPS),
            handles,
            local_base=self._folder,
            clock=self.clock,
        )
        self._opened.callback(self.backend.close)
        self.services = TimerServices(self.backend)
        self.operator = WindowOperator(
            self.definition,
            self.contents,
            self.function,
            ROW,
            backend=self.backend,
            timers=self.services,
            emit=self.out.extend,
            output=lambda name, row: self.side.append((name, row)),
            late=lambda row: self.late.append((row.key, row.value)),
        )
        self.service = self.services.service(
            TIMERS, self.operator, self.definition.assigner.window_serializer
        )

    def restart(self) -> None:
        """Write a snapshot into a file and continue with another operator that is restored from it."""
        watermark = self.backend.watermark
        path = f"segment-{next(self._numbers)}.seg"
        writer = SegmentWriter(self._storage, path, self.backend.key_groups)
        self.backend.snapshot(next(self._numbers)).run(writer)
        with contextlib.closing(SegmentHandle.open(self._storage, writer.finish())) as handle:
            self.backend.close()
            self._start([handle])
        self.backend.advance_watermark(watermark)

    def row(self, key: str, time: int | None = None, value: int = 1) -> list[Any]:
        """Process a row and return what windows give for it."""
        self.backend.set_current_key(key)
        self.backend.current.timestamp = time
        self.operator.process(ROW.python_type(key, value), time)
        return self.taken()

    def rows(self, *rows: tuple[str, int]) -> None:
        """Process rows of one each, which fire nothing."""
        for key, time in rows:
            assert self.row(key, time) == []

    def watermark(self, time: int) -> list[Any]:
        """Advance event time and return what windows give, sorted."""
        self.services.advance_watermark(time)
        return sorted(self.taken())

    def time(self, now: int) -> list[Any]:
        """Advance processing time and return what windows give, sorted."""
        self.services.advance_processing_time(now)
        return sorted(self.taken())

    def taken(self) -> list[Any]:
        taken = self.out.copy()
        self.out.clear()
        return taken

    @property
    def timers(self) -> int:
        return self.service.num_event_time_timers() + self.service.num_processing_time_timers()

    @property
    def entries(self) -> dict[str, int]:
        """The entries of each state that has any, those of timers aside."""
        found = self.backend.entries_by_state()
        return {name: count for name, count in found.items() if count and not name.startswith("_timer")}


@pytest.fixture
def jobs(backend_name: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs: ``jobs(assigner, trigger=..., evictor=..., lateness=..., contents=..., function=...)``."""
    with ExitStack() as opened:

        def make(
            assigner: Any,
            *,
            trigger: Any = None,
            evictor: Any = None,
            lateness: Any = None,
            contents: WindowContents | None = None,
            function: ProcessWindowFunction | None = None,
        ) -> Job:
            definition = WindowDefinition.of(assigner)
            if trigger is not None:
                definition = definition.with_trigger(trigger)
            if evictor is not None:
                definition = definition.with_evictor(evictor)
            if lateness is not None:
                definition = definition.with_allowed_lateness(lateness)
            return Job(backend_name, tmp_path, opened, definition, contents, function)

        yield make
