"""Windows over the rows of a key as process functions."""

from keyedstate.runtime.windows.builder import Windowed, WindowOutput, windowed
from keyedstate.runtime.windows.function import (
    MISSING,
    WINDOW_END,
    WINDOW_START,
    WindowedFunction,
)

__all__ = [
    "MISSING",
    "WINDOW_END",
    "WINDOW_START",
    "WindowOutput",
    "Windowed",
    "WindowedFunction",
    "windowed",
]
