"""Which serializer a part of a state continues with, whichever of the two is known first."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import SerializerOrderError, StateMigrationError
from keyedstate.state.registry.serializer_provider import SerializerProvider


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class MoreLevels(enum.Enum):
    HIGH = 2
    MIDDLE = 3
    LOW = 1


LEVEL, MORE = types.enum_of(Level, name="Level"), types.enum_of(MoreLevels, name="Level")


def lazy(restored: Any, registered: Any, **arguments: Any) -> SerializerProvider:
    """What a state does: it is restored, and registered when the program asks for it."""
    provider = SerializerProvider("s", "value", restored=restored, **arguments)
    assert provider.current is restored
    provider.register(registered)
    return provider


def eager(restored: Any, registered: Any, **arguments: Any) -> SerializerProvider:
    """What keys do: the program's type is known before a snapshot is opened."""
    provider = SerializerProvider("s", "value", registered=registered, **arguments)
    assert provider.current is registered
    provider.restore(restored)
    return provider


both_orders = pytest.mark.parametrize("provider_of", [lazy, eager])


@both_orders
def test_an_unchanged_type_is_the_registered_one(provider_of: Any) -> None:
    """MIG-25."""
    registered = types.list_of(types.INT64)
    provider = provider_of(types.list_of(types.INT64), registered)
    assert provider.current is registered
    assert provider.previous == registered and provider.previous is not registered


@both_orders
def test_after_a_migration_the_registered_type_is_used(provider_of: Any) -> None:
    """MIG-25: and the restored one still reads what was written."""
    provider = provider_of(types.INT32, types.INT64)
    assert (provider.current, provider.previous) == (types.INT64, types.INT32)


@both_orders
def test_a_reconfigured_type_takes_the_place_of_the_registered_one(provider_of: Any) -> None:
    """MIG-25."""
    provider = provider_of(LEVEL.snapshot().restore_serializer(), MORE)
    assert provider.current.constants == ("LOW", "HIGH", "MIDDLE")
    assert provider.current.enum_class is MoreLevels
    assert provider.previous.enum_class is None


@both_orders
def test_an_incompatible_type_is_refused_at_every_look_up(provider_of: Any) -> None:
    """MIG-25: the restored one still exists for a state that is kept as it is."""
    provider = provider_of(types.INT64, types.STRING)
    for _ in range(2):
        with pytest.raises(StateMigrationError, match=r"the value type of the state 's' is now STRING"):
            _ = provider.current
    assert provider.previous is types.INT64


@both_orders
def test_what_entries_are_found_by_may_not_migrate_but_may_be_reconfigured(provider_of: Any) -> None:
    provider = provider_of(types.INT32, types.INT64, may_migrate=False)
    with pytest.raises(
        StateMigrationError, match="a value type cannot migrate, since entries are found by it"
    ):
        _ = provider.current
    provider = provider_of(LEVEL, MORE, may_migrate=False)
    assert provider.current.constants == ("LOW", "HIGH", "MIDDLE")


def test_each_of_the_two_comes_once() -> None:
    """MIG-25: also where the second is the same."""
    for provider in (lazy(types.INT64, types.INT64), eager(types.INT64, types.INT64)):
        with pytest.raises(
            SerializerOrderError, match=r"'s' comes out of order: INT64 is registered already"
        ):
            provider.register(types.INT64)
        with pytest.raises(SerializerOrderError, match="INT64 is restored already"):
            provider.restore(types.INT64)
        assert provider.current == types.INT64
    unregistered = SerializerProvider("s", "value", restored=types.INT64)
    with pytest.raises(SerializerOrderError, match="is restored already"):
        unregistered.restore(types.INT64)


def test_a_serializer_that_was_not_set_is_refused() -> None:
    """MIG-25."""
    provider = SerializerProvider("s", "key", registered=types.INT64)
    with pytest.raises(
        SerializerOrderError, match=r"key type of the state 's' .*nothing was restored"
    ) as caught:
        _ = provider.previous
    assert (caught.value.state, caught.value.part) == ("s", "key")
    with pytest.raises(SerializerOrderError):
        _ = SerializerProvider("s", "key").current
