"""In which form this installation runs: compiled, or as plain Python, and then why."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files

from keyedstate_heap_cow import cowmap

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

#: What is compiled, by the name of its module.
_MODULES = {"cowmap": "the map", "keyindex": "the index of tables in columns"}


def _has_index() -> bool:
    try:
        import_module(f"{__package__}.keyindex")
    except ImportError:  # it exists compiled or not at all
        return False
    return True


_COMPILED = {"cowmap": cowmap.COMPILED, "keyindex": _has_index()}


def build() -> str:
    """Return in which form this installation runs, in a word or two."""
    if all(_COMPILED.values()):
        return "compiled"
    return "compiled in part" if any(_COMPILED.values()) else "plain Python"


def build_problem() -> str:
    """Return what is not compiled, why, and the way out; empty where everything is compiled."""
    missing = [name for name, compiled in _COMPILED.items() if not compiled]
    if not missing:
        return ""
    file = files(__package__).joinpath(_REASONS)
    reasons = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    parts = [f"{_MODULES[name]} is not compiled ({reasons.get(name, _NO_REASON)})" for name in missing]
    return f"It is several times slower than it could be: {'; '.join(parts)}. {_WAY_OUT}"
