"""The hook: a reporter where the options name a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from keyedstate.errors import InvalidOptionError
from keyedstate.hooks import hookimpl
from keyedstate.metrics import EpochMetrics
from keyedstate_prometheus.text_file import TextFile

FILE = "prometheus.file"


@hookimpl
def keyedstate_metric_reporter(options: Mapping[str, str]) -> Callable[[EpochMetrics], None] | None:
    """Return the function that writes the file; None without a file."""
    if FILE not in options:
        return None
    path = Path(options[FILE])
    if not path.parent.is_dir():
        raise InvalidOptionError(FILE, options[FILE], "a file in a folder that exists", "metrics.options")
    return TextFile(path).report
