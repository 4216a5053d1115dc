"""A line on the terminal, or in the notebook, that shows how far a long run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from keyedstate.local.run.elements import Committed, Element

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds before the line appears: a short run shows nothing.
_DELAY = 2.0


def with_progress(elements: Iterator[Element]) -> Iterator[Element]:
    """Return the elements of a run, and show a line where a person sees it."""
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return elements
    # Only a run that shows something pays for the import.
    from rich.console import Console

    return shown(elements, Console(stderr=True), _DELAY)


def shown(elements: Iterator[Element], console: Console, delay: float) -> Iterator[Element]:
    """Yield the elements of a run; after so many seconds show its rows, checkpoint and time."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    line = Progress(*columns, console=console, transient=True)
    task = line.add_task("")
    rows, checkpoint, begins = 0, "", time.monotonic() + delay
    try:
        for element in elements:
            if isinstance(element, pa.RecordBatch):
                rows += element.num_rows
            elif isinstance(element, Committed):
                checkpoint = f", checkpoint {element.epoch}"
            line.update(task, description=f"{rows:,} rows{checkpoint}")
            if not line.live.is_started and time.monotonic() >= begins:
                line.start()
            yield element
    finally:
        line.stop()
