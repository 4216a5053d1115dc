"""What every part of the contract kit starts from: an instance with a table, and a model of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyedstate import types
from keyedstate.backend import AnyStateTable, Capability, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing.instances import Instance, open_instance

#: An address as the tests write it: key group, key, namespace.
Address = tuple[int, str | None, int]
Open = Callable[..., Instance]

MAX_PARALLELISM = 16
#: Neither from the first key group nor to the last: an index must not be mistaken for a key group.
KEY_GROUPS = KeyGroupRange(3, 9)
META = StateMeta(
    name="visits",
    kind=StateKind.VALUE,
    key_serializer=types.nullable(types.STRING),
    namespace_serializer=types.INT64,
    value_serializer=types.nullable(types.list_of(types.INT64)),
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

    def _needs(self, instance: Instance, capability: Capability) -> None:
        level = instance.backend.description.level(capability)
        if not level.usable:
            pytest.skip(f"{self.backend} claims {capability.value} as {level.value}")
