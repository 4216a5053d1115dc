"""Testing without Spark and without Java: the harness for process functions, the contract kit for backends.

`Harness` runs a process function; its page is ``docs/how-to/testing-your-function.md``::

    with Harness(PageViews(), key="user", schema="user string", output="user string, views long") as harness:
        assert harness.process({"user": "ann"}) == [("ann", 1)]

A whole test file of a backend is::

    from keyedstate.testing import BackendContract


    class TestMyBackend(BackendContract):
        backend = "my-backend"

The contract kit needs pytest (``pip install 'keyedstate[test]'``), the harness does not. Names are imported
at their first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyedstate.testing.contract import BackendContract
    from keyedstate.testing.harness import Harness, HarnessSnapshot, Input
    from keyedstate.testing.instances import Instance, open_instance

__all__ = [
    "BackendContract",
    "Harness",
    "HarnessSnapshot",
    "Input",
    "Instance",
    "open_instance",
]

_MODULES = {"BackendContract": "contract", "Instance": "instances", "open_instance": "instances"}

# Before it is imported, so that its assertions are explained as in a test file.
if sys.modules.get("pytest") is not None:
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.contract")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'harness')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
