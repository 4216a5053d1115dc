"""The harness: a process function under test, without Spark and without Java."""

from keyedstate.testing.harness.connected_inputs import Input
from keyedstate.testing.harness.harness import Harness
from keyedstate.testing.harness.instance import HarnessInstance
from keyedstate.testing.harness.snapshot import HarnessSnapshot

__all__ = [
    "Harness",
    "HarnessInstance",
    "HarnessSnapshot",
    "Input",
]
