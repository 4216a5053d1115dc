"""A process, a clock and tables that exist in numbers only; importable as ``spillable_simulation``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "spillable_simulation", Path(__file__).with_name("simulation.py")
)
assert _spec is not None and _spec.loader is not None
sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_spec.name])
