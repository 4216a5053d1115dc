"""The serializer of a part of a state after a restart: the restored or the declared one.

Counterpart of Flink's ``StateSerializerProvider``.
"""

from __future__ import annotations

from typing import Any

from keyedstate.errors import SerializerOrderError, StateMigrationError
from keyedstate.types import TypeSerializer


class SerializerProvider:
    """The serializers of one part of a state: of its keys, namespaces or values.

    Each is set once, in either order: the restored one first, before the program registers the state (Flink's
    lazy provider), or the registered one first (the eager one). Unless `may_migrate`, old values may not be
    rewritten in another form: entries are found by keys and namespaces.
    """

    def __init__(
        self,
        state: str,
        part: str,
        *,
        restored: TypeSerializer[Any] | None = None,
        registered: TypeSerializer[Any] | None = None,
        may_migrate: bool = True,
    ) -> None:
        self._state = state
        self._part = part
        self._may_migrate = may_migrate
        self._restored = restored
        self._registered = registered

    @property
    def current(self) -> TypeSerializer[Any]:
        """The registered serializer, or its reconfigured form; before the registration the restored one.

        Raises `StateMigrationError` where the registered one is not compatible with the restored one;
        `SerializerOrderError` where neither is known.
        """
        if self._registered is None:
            return self.previous
        if self._restored is None:
            return self._registered
        # Not the declared one's snapshot: only the declared serializer has the user's classes.
        verdict = self._registered.resolve_compatibility(self._restored.snapshot())
        if verdict.is_incompatible:
            raise self._refusal(verdict.reason)
        if verdict.is_after_migration and not self._may_migrate:
            raise self._refusal(f"a {self._part} type cannot migrate, since entries are found by it")
        return verdict.serializer or self._registered

    @property
    def previous(self) -> TypeSerializer[Any]:
        """The restored serializer; raises `SerializerOrderError` where nothing was restored."""
        if self._restored is None:
            raise SerializerOrderError(self._state, self._part, "nothing was restored that has a type")
        return self._restored

    def register(self, serializer: TypeSerializer[Any]) -> None:
        """Set the serializer that the running program declares.

        Raises `SerializerOrderError` the second time.
        """
        if self._registered is not None:
            raise SerializerOrderError(self._state, self._part, f"{self._registered!r} is registered already")
        self._registered = serializer

    def restore(self, serializer: TypeSerializer[Any]) -> None:
        """Set the serializer that wrote the restored state; raises `SerializerOrderError` the second time."""
        if self._restored is not None:
            raise SerializerOrderError(self._state, self._part, f"{self._restored!r} is restored already")
        self._restored = serializer

    def _refusal(self, reason: str) -> StateMigrationError:
        return StateMigrationError(self._state, self._part, self._restored, self._registered, reason)
