"""The current key: what the state handles of one keyed backend share."""

from __future__ import annotations

from typing import Any

from keyedstate.state.errors import NoCurrentKeyError


class _NoKey:
    """Stands for key and key group before the first key; whatever a table does with it is refused.

    So no access has to ask whether there is a key.
    """

    def _refuse(self, *_: object) -> Any:
        raise NoCurrentKeyError()

    __hash__ = __eq__ = __sub__ = __index__ = _refuse

    def __repr__(self) -> str:
        return "no key"


class KeyContext:
    """The current key of one keyed backend, shared by all of its handles.

    Attributes
    ----------
    key : object
        None is a key.
    key_group : int
        The key group of `key`; whoever sets one sets both.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = _NoKey()
        self.key_group: Any = self.key
