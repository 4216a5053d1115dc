"""The current key, and the keys of bulk calls: what the accessors of one keyed backend share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keyedstate.errors import InvalidKeyValueError, NoCurrentKeyError, ValueTypeError
from keyedstate.keygroups import KeyGroupRange, key_group_for_hash
from keyedstate.murmur3 import hash_value
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.types import TypeSerializer


class _NoKey:
    """Key and key group before the first key: it refuses whatever a table does with it.

    So no access has to check whether there is a key.
    """

    def _refuse(self, *_: object) -> Any:
        raise NoCurrentKeyError()

    __hash__ = __eq__ = __sub__ = __index__ = _refuse

    def __repr__(self) -> str:
        return "no key"


class KeySequence(NamedTuple):
    """The keys of some rows, in the order in which each becomes the current one."""

    keys: list[Any]
    key_groups: list[int]
    #: Whether no key is repeated.
    distinct: bool


class KeyContext:
    """The current key of one keyed backend, and its key group, always set together; None is a key.

    `timestamp` is the event time of the current record, in milliseconds since 1970 UTC. All accessors share
    it.
    """

    __slots__ = (
        "_key_groups",
        "_max_parallelism",
        "_own",
        "key",
        "key_group",
        "sequence",
        "serializer",
        "timestamp",
        "turn",
    )

    def __init__(
        self, serializer: TypeSerializer[Any], key_groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        #: Of the key.
        self.serializer = serializer
        self._key_groups = key_groups
        self._own = frozenset(key_groups)
        self._max_parallelism = max_parallelism
        #: With a write-behind cache, the keys from which `key` is taken.
        self.sequence = KeySequence([], [], False)
        #: The position of `key` in it.
        self.turn = 0
        self.clear()

    def clear(self) -> None:
        """Set no current key: every use of the state of a key is refused."""
        self.key: Any = _NoKey()
        self.key_group: Any = self.key
        self.timestamp: int | None = None

    def key_group_of(self, key: object) -> int:
        """Return the key group that Spark's ``hash`` gives a key in canonical form."""
        arrow_type = self.serializer.arrow_type
        try:
            key_hash = hash_value(key, arrow_type)
        except InvalidKeyValueError:
            # Constants, UUIDs and records have the hash of their form in columns.
            [key] = self.serializer.to_arrow([key]).to_pylist()
            key_hash = hash_value(key, arrow_type)
        return key_group_for_hash(key_hash, self._max_parallelism)

    def locate(
        self, keys: Iterable[Any], key_groups: Sequence[int] | npt.NDArray[Any] | None = None
    ) -> tuple[list[Any], list[int]]:
        """Return the keys of a bulk call in canonical form, and the key group of each.

        Key groups that the caller does not know are computed at once, as Spark does.

        Raises `ValueTypeError` where a key is not of the key type; `ValueError` where a key belongs to
        another instance, or there are not as many key groups as keys.
        """
        serializer = self.serializer
        found = list(keys)
        if not serializer.are_values(found):
            for key in found:
                self.refuse(key)
        if serializer.needs_canonical:
            found = list(map(serializer.canonical, found))
        if key_groups is None:
            key_groups = key_groups_of([serializer.to_arrow(found)], self._max_parallelism)
        groups: list[int] = key_groups.tolist() if isinstance(key_groups, np.ndarray) else list(key_groups)
        if len(groups) != len(found):
            raise ValueError(
                f"{len(found)} keys and {len(groups)} key groups; give one of each for every key"
            )
        if not self._own.issuperset(groups):
            for key, group in zip(found, groups, strict=True):
                self.check_own(key, group)
        return found, groups

    def refuse(self, key: object) -> None:
        """Raise `ValueTypeError` unless a key is of the key type."""
        try:
            self.serializer.check(key)
        except ValueTypeError as error:
            raise error.within("the key") from None

    def check_own(self, key: object, key_group: int) -> None:
        """Raise ValueError unless the key group is one of this instance's."""
        if key_group not in self._key_groups:
            raise ValueError(
                f"the key {key!r} belongs to key group {key_group}, outside {self._key_groups} of this "
                "instance; send it to the instance that owns the group"
            )
