"""What the accessors of states with a time to live share: the notes of what they write."""

from __future__ import annotations

from typing import Any

from keyedstate.state.kinds.accessor import StateAccessor
from keyedstate.state.kinds.merging import MergingStateAccessor
from keyedstate.state.ttl.expiry import StateExpiry


class ExpiringStateAccessor(StateAccessor):
    """A state whose writes the expiry index gets, and whose accesses clean up a little."""

    __slots__ = ()

    #: A slot of the subclasses: a class has but one base with slots of its own.
    _expiry: StateExpiry

    def _expire_by(self, expiry: StateExpiry) -> None:
        self._expiry = expiry  # type: ignore[misc] # a slot of the subclasses

    def _write_many(self, groups: list[int], keys: list[Any], values: list[Any]) -> None:
        super()._write_many(groups, keys, values)
        expiry = self._expiry
        expiry.accessed()
        if expiry.index is not None:
            for key, group, value in zip(keys, groups, values, strict=True):
                if value is not None:
                    expiry.index.written(group, key, self._namespace)


class ExpiringMergingStateAccessor(ExpiringStateAccessor, MergingStateAccessor):
    """One whose namespaces merge, with the timestamps of before."""

    __slots__ = ()

    def _put_merged(self, group: int, key: Any, target: Any, merged: Any) -> None:
        super()._put_merged(group, key, target, merged)
        self._expiry.moved(group, key, target, merged)
