"""The packages that the contract kit needs besides keyedstate, checked before it is imported."""

from __future__ import annotations

import importlib.util
import sys

from keyedstate.errors import MissingPackageError

_NEEDED = ("pytest", "hypothesis")


def require_test_extra() -> None:
    """Refuse to continue without the extra ``test``.

    Raises
    ------
    MissingPackageError
        Where pytest or Hypothesis is not installed.
    """
    missing = tuple(name for name in _NEEDED if not _installed(name))
    if missing:
        raise MissingPackageError("the contract kit", missing, "test")


def _installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
