"""In which form this installation runs: compiled, or as plain Python, and then why."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any

from keyedstate_heap_cow import state_map

#: Where ``setup.py`` writes why it did not compile something.
_REASONS = "not_compiled.json"
_NO_REASON = (
    "there is no compiled form for this Python: KEYEDSTATE_HEAP_COW_PURE was set at the installation, or the "
    "package comes from another Python or from a zip file"
)
_WAY_OUT = (
    "Where a C compiler and the headers of Python are installed, install it again with `pip install "
    "--force-reinstall --no-deps --no-cache-dir keyedstate-heap-cow`."
)

#: What is compiled, by the name of its extension module, and the revision that the tables call.
_EXTENSIONS = {"cowmap": "the map", "keyindex": "the index of tables in columns"}
_REVISIONS = {"cowmap": state_map.REVISION, "keyindex": 5}


def _extension(name: str) -> ModuleType | None:
    """Import a compiled module; None where it was not compiled.  One that cannot be loaded is an error."""
    module = f"{__package__}.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


_COMPILED = {name: _extension(name) for name in _EXTENSIONS}
for _name, _module in _COMPILED.items():
    if _module is not None and getattr(_module, "REVISION", 1) != _REVISIONS[_name]:
        raise ImportError(
            f"{_module.__file__} was compiled from another version than the source next to it. Compile it "
            "again: run `python setup.py build_ext --inplace` in plugins/heap-cow, or `make setup`."
        )
_COMPILED_MAP: Any = _COMPILED["cowmap"]


def map_module(*, compiled: bool = True) -> Any:
    """Return the module of the map: compiled where that is wanted and possible, or else plain Python."""
    return _COMPILED_MAP if compiled and _COMPILED_MAP is not None else state_map


def build() -> str:
    """Return in which form this installation runs, in a word or two."""
    if all(_COMPILED.values()):
        return "compiled"
    return "compiled in part" if any(_COMPILED.values()) else "plain Python"


def build_problem() -> str:
    """Return what is not compiled, why, and the way out; empty where everything is compiled."""
    missing = [name for name, module in _COMPILED.items() if module is None]
    if not missing:
        return ""
    file = files(__package__).joinpath(_REASONS)
    reasons = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    parts = [f"{_EXTENSIONS[name]} is not compiled ({reasons.get(name, _NO_REASON)})" for name in missing]
    return f"It is several times slower than it could be: {'; '.join(parts)}. {_WAY_OUT}"
