"""The base of the contract kit: capabilities, instances, and a model of their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import pytest

from keyedstate import types
from keyedstate.backend import AnyStateTable, BackendDescription, Capability, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.instances import Instance, chosen_backend, open_instance

Test = TypeVar("Test", bound=Callable[..., None])

#: An address in the tests: key group, key, namespace.
Address = tuple[int, str | None, int]
Open = Callable[..., Instance]

MAX_PARALLELISM = 16
#: Without the first and the last key group, so that no index equals a key group.
KEY_GROUPS = KeyGroupRange(3, 9)
META = StateMeta(
    name="visits",
    kind=StateKind.VALUE,
    key_serializer=types.nullable(types.STRING),
    namespace_serializer=types.INT64,
    value_serializer=types.nullable(types.list_of(types.INT64)),
)


#: A feature of a backend that a test may need.
Need: TypeAlias = "Capability | StateKind | TablePart"

#: The attribute of a test with its needs.
_NEEDS = "keyedstate_needs"


def requires(*needs: Need) -> Callable[[Test], Test]:
    """Mark a test with its needs: it runs where the backend has all of them, and counts for each.

    A test with a parameter that is a `StateKind`, or has one as its ``kind``, needs that kind too.
    """

    def mark(test: Test) -> Test:
        setattr(test, _NEEDS, needs)
        return test

    return mark


def needs_of(item: pytest.Item) -> tuple[Need, ...]:
    """Return the needs of a collected test; none if every backend must pass it."""
    own: tuple[Need, ...] = getattr(getattr(item, "function", None), _NEEDS, ())
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec is not None else ()
    given = (getattr(value, "kind", value) for value in values)
    return (*own, *(kind for kind in given if isinstance(kind, StateKind)))


def subjects_of(item: pytest.Item) -> tuple[Capability | TablePart, ...]:
    """Return the subjects of a collected test, as reports name them."""
    return tuple(
        Capability.STATE_KINDS if isinstance(need, StateKind) else need
        for need in dict.fromkeys(needs_of(item))
    )


def content(table: AnyStateTable) -> dict[Address, Any]:
    """Return every entry of a table, read through a snapshot of it; an entry shown twice is an error."""
    found: dict[Address, Any] = {}
    snapshot = table.snapshot()
    try:
        for key_group in table.key_groups:
            for batch in snapshot.batches(key_group, 100):
                for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                    assert (key_group, key, namespace) not in found
                    found[key_group, key, namespace] = value
    finally:
        snapshot.release()
    return found


def fill(table: AnyStateTable, entries: int) -> dict[Address, Any]:
    """Put entries into every key group of a table, over three namespaces; return them by address."""
    model: dict[Address, Any] = {}
    groups = list(table.key_groups)
    for number in range(entries):
        address = (groups[number % len(groups)], f"key-{number}", number % 3)
        model[address] = [number]
        table.put(*address, [number])
    return model


class ContractBase:
    """The fixtures of the contract kit.

    Attributes
    ----------
    backend : str
        The name of an installed backend.
    options : mapping
        Options to run it with.
    """

    backend: ClassVar[str]
    options: ClassVar[Mapping[str, object]] = {}

    @pytest.fixture
    def description(self) -> BackendDescription:
        """The description of the backend."""
        return chosen_backend(self.backend, self.options)[0].description

    @pytest.fixture(autouse=True)
    def _has_what_is_needed(
        self, request: pytest.FixtureRequest, description: BackendDescription, tmp_path: Path
    ) -> None:
        """Skip a test that needs what the backend does not have."""
        for need in needs_of(request.node):
            if isinstance(need, StateKind):
                if not description.supports(need):
                    pytest.skip(f"{self.backend} does not support {need.value} state")
            elif isinstance(need, TablePart):
                if not need.is_in(self.backend, self.options, tmp_path):
                    pytest.skip(f"the tables of {self.backend} are no {need.interface.__name__}")
            elif not description.level(need).usable:
                pytest.skip(f"{self.backend} claims {need.value} as {description.level(need).value}")

    @pytest.fixture
    def keyed(self, tmp_path: Path) -> Iterator[KeyedInstances]:
        """Keyed backends, as in a job, closed at the end of the test."""
        instances = KeyedInstances(self.backend, tmp_path, self.options)
        yield instances
        instances.close()

    @pytest.fixture
    def open_instance(self, tmp_path: Path) -> Iterator[Open]:
        """Open instances that are closed when the test ends."""
        opened: list[Instance] = []

        def open_(key_groups: KeyGroupRange = KEY_GROUPS, handles: Any = ()) -> Instance:
            instance = open_instance(
                self.backend,
                tmp_path,
                options=self.options,
                key_groups=key_groups,
                max_parallelism=MAX_PARALLELISM,
                handles=handles,
            )
            opened.append(instance)
            return instance

        yield open_
        for instance in opened:
            instance.close()

    @pytest.fixture
    def instance(self, open_instance: Open) -> Instance:
        """An empty instance over `KEY_GROUPS`."""
        return open_instance()

    @pytest.fixture
    def table(self, instance: Instance) -> AnyStateTable:
        """An empty table of it."""
        return instance.table(META)
