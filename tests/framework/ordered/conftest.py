"""The module `dict_space` is importable as ``ordered_dict_space``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "ordered_dict_space", Path(__file__).with_name("dict_space.py")
)
assert _SPEC is not None and _SPEC.loader is not None
sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sys.modules[_SPEC.name])
