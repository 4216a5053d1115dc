"""Which serializer a part of a state goes on with: the one that wrote it, or the one the program declares.

Counterpart of Flink's ``StateSerializerProvider``.
"""

from __future__ import annotations

from typing import Any

from keyedstate.errors import SerializerOrderError, StateMigrationError
from keyedstate.types import Compatibility, TypeSerializer


class SerializerProvider:
    """The serializers of one part of a state, its keys, namespaces or values, over a restart.

    The two may come in either order: restored first and registered when the program asks for the state
    (Flink's lazy provider), or registered first and restored afterwards (the eager one).  Each comes once.

    Parameters
    ----------
    state, part : str
        For errors: the state's name, and ``key``, ``namespace``, ``value`` and so on.
    restored : TypeSerializer, optional
        The one that wrote what is restored, as its snapshot gives it.
    registered : TypeSerializer, optional
        The one that the running program declares.
    may_migrate : bool, default True
        Whether what was written may be written anew in another form.  Keys and namespaces may not: entries
        are found by them.
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
        #: Set as soon as both are there.
        self._verdict: Compatibility | None = None
        self._resolve()

    @property
    def current(self) -> TypeSerializer[Any]:
        """The serializer to go on with.

        Before the program registers one it is the restored one; afterwards the registered one, or what that
        was reconfigured to.

        Raises
        ------
        StateMigrationError
            Where the registered one cannot go on with what is restored.
        SerializerOrderError
            Where there is neither.
        """
        if self._registered is None:
            return self.previous
        if self._verdict is None or self._restored is None:
            return self._registered
        if self._verdict.is_incompatible:
            raise self._refusal(self._verdict.reason)
        if self._verdict.is_after_migration and not self._may_migrate:
            raise self._refusal(f"a {self._part} type cannot migrate, since entries are found by it")
        return self._verdict.serializer or self._registered

    @property
    def previous(self) -> TypeSerializer[Any]:
        """The serializer that wrote what is restored.

        Raises
        ------
        SerializerOrderError
            Where nothing was restored.
        """
        if self._restored is None:
            raise SerializerOrderError(self._state, self._part, "nothing was restored that has a type")
        return self._restored

    def register(self, serializer: TypeSerializer[Any]) -> None:
        """Say what the running program declares.

        Raises
        ------
        SerializerOrderError
            The second time.
        """
        if self._registered is not None:
            raise SerializerOrderError(self._state, self._part, f"{self._registered!r} is registered already")
        self._registered = serializer
        self._resolve()

    def restore(self, serializer: TypeSerializer[Any]) -> None:
        """Say what wrote the state that is restored.

        Raises
        ------
        SerializerOrderError
            The second time.
        """
        if self._restored is not None:
            raise SerializerOrderError(self._state, self._part, f"{self._restored!r} is restored already")
        self._restored = serializer
        self._resolve()

    def _resolve(self) -> None:
        if self._registered is not None and self._restored is not None:
            # The declared serializer is asked, not its snapshot: only it knows the user's classes.
            self._verdict = self._registered.resolve_compatibility(self._restored.snapshot())

    def _refusal(self, reason: str) -> StateMigrationError:
        return StateMigrationError(self._state, self._part, self._restored, self._registered, reason)
