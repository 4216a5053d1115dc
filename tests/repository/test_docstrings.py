"""Every public method says what it does: in its own docstring, or in that of the method that it overrides.

An override that adds nothing to its base has no docstring: `help` and the reference show the base's.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

PACKAGES = (
    "keyedstate",
    "keyedstate_heap_cow",
    "keyedstate_nested_map",
    "keyedstate_rocksdb",
    "keyedstate_spillable",
    "keyedstate_sqlite",
)
#: Tests and the steps of state machines, whose names say what they are about.
CONTRACT_KIT = "keyedstate.testing.contract"


def modules(package: str) -> Iterator[ModuleType]:
    """Yield the modules of a package."""
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__") and not found.name.startswith(CONTRACT_KIT):
            yield importlib.import_module(found.name)


def undocumented(module: ModuleType) -> list[str]:
    """Return the public methods of a module's public classes that have no docstring, not even inherited."""
    return [
        f"{cls.__module__}.{cls.__qualname__}.{name}"
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and not cls.__name__.startswith("_")
        for name, member in vars(cls).items()
        if not name.startswith("_") and _is_method(member) and not _documented(cls, name)
    ]


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))


def _documented(cls: type, name: str) -> bool:
    return any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_method_has_a_docstring_or_overrides_one_that_has(package: str):
    pytest.importorskip(package)
    assert [name for module in modules(package) for name in undocumented(module)] == []


def test_a_method_without_any_docstring_is_found_and_an_override_is_not():
    module = ModuleType("written")
    source = (
        "class Base:\n    def told(self):\n        '''Say it.'''\n"
        "class Derived(Base):\n    def told(self): ...\n    def untold(self): ...\n"
    )
    exec(source, vars(module))
    assert undocumented(module) == ["written.Derived.untold"]
