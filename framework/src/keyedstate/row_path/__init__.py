"""The steps of the per-record path that gain by being compiled, in the form that this installation has.

`plain` describes them. `compiled` is an extension, which is missing where it could not be compiled.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keyedstate.row_path import plain

#: That of `compiled.pyx`.
_REVISION = 11


def _compiled() -> Any:
    """Return the extension; None where none exists. One that cannot be loaded is an error."""
    name = f"{__name__}.compiled"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    if module.REVISION != _REVISION:
        raise ImportError(
            f"{module.__file__} was compiled from another version than the source next to it. Compile it "
            "again: install keyedstate again, or run `make setup` in its repository."
        )
    return module


compiled: Any = _compiled()

if TYPE_CHECKING:
    from keyedstate.row_path.plain import (
        are_of,
        checker,
        coder,
        columns_of,
        fold_bytes,
        instants_of,
        numbered_texts,
        packed_instants,
        packed_longs,
        packed_text,
        repeated,
        short_texts,
        tuples_of,
        with_cached_access,
    )
else:
    _form = compiled or plain
    are_of = _form.are_of
    checker = _form.checker
    coder = _form.coder
    columns_of = _form.columns_of
    fold_bytes = _form.fold_bytes
    instants_of = _form.instants_of
    numbered_texts = _form.numbered_texts
    packed_instants = _form.packed_instants
    packed_longs = _form.packed_longs
    packed_text = _form.packed_text
    repeated = _form.repeated
    short_texts = _form.short_texts
    tuples_of = _form.tuples_of
    with_cached_access = _form.with_cached_access

__all__ = [
    "are_of",
    "checker",
    "coder",
    "columns_of",
    "compiled",
    "fold_bytes",
    "instants_of",
    "numbered_texts",
    "packed_instants",
    "packed_longs",
    "packed_text",
    "repeated",
    "short_texts",
    "tuples_of",
    "with_cached_access",
]
