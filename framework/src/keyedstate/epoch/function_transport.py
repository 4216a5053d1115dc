"""A process function on its way from the driver to the tasks."""

from __future__ import annotations

from typing import Any

import cloudpickle

from keyedstate.errors import FunctionTransportError, described
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.checks import row_classes
from keyedstate.runtime.row_classes import RowClass


def pack_function(function: KeyedFunction) -> bytes:
    """Return the function and the classes of its rows, pickled.

    The classes are resolved on the driver: annotations that are text may name what only it has imported.
    Raises `FunctionTransportError` and `RowClassError`.
    """
    classes = row_classes(function)
    try:
        packed: bytes = cloudpickle.dumps((function, classes))
    except Exception as error:  # whatever an object's own way of being pickled raises
        raise FunctionTransportError(type(function).__name__, "pack", described(error)) from error
    return packed


def unpack_function(packed: bytes, name: str) -> tuple[Any, dict[str, RowClass]]:
    """Return a function and the classes of its rows; raises `FunctionTransportError`, which has the name."""
    try:
        function, classes = cloudpickle.loads(packed)
    except Exception as error:  # whatever importing the user's modules raises
        raise FunctionTransportError(name, "unpack", described(error)) from error
    return function, classes
