"""What a new serializer may do with what an old one wrote, and how nested verdicts add up.

Counterpart of Flink's ``TypeSerializerSchemaCompatibility`` and ``CompositeTypeSerializerUtil``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from keyedstate.types.serializer import TypeSerializer


class Outcome(enum.Enum):
    """The four verdicts, the mildest first; of several nested ones the last wins."""

    AS_IS = "as is"
    RECONFIGURED = "reconfigured"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


_SEVERITY = {outcome: rank for rank, outcome in enumerate(Outcome)}


@dataclass(frozen=True)
class Compatibility:
    """A verdict: compare it with ``==``, or read `outcome`.

    Attributes
    ----------
    outcome : Outcome
    serializer : TypeSerializer or None
        The serializer to use instead of the new one; set for a reconfigured outcome and for no other.
    reason : str
        For people; two verdicts that differ only here are equal.

    Raises
    ------
    ValueError
        For a reconfigured outcome without a serializer, or another one with it (SER-02).
    """

    outcome: Outcome
    serializer: TypeSerializer[Any] | None = None
    reason: str = field(default="", compare=False)

    AS_IS: ClassVar[Compatibility]
    AFTER_MIGRATION: ClassVar[Compatibility]
    INCOMPATIBLE: ClassVar[Compatibility]

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.RECONFIGURED) is not (self.serializer is not None):
            raise ValueError(
                f"the outcome {self.outcome.value!r} with the serializer {self.serializer!r}: a reconfigured "
                "outcome has a serializer and no other one has; use Compatibility.reconfigured_with."
            )

    @classmethod
    def reconfigured_with(cls, serializer: TypeSerializer[Any], reason: str = "") -> Compatibility:
        """Return the verdict that `serializer` must be used instead of the new one."""
        return cls(Outcome.RECONFIGURED, serializer, reason)

    @classmethod
    def after_migration(cls, reason: str) -> Compatibility:
        """Return the verdict that old values must be read with the old serializer and written anew."""
        return cls(Outcome.AFTER_MIGRATION, reason=reason)

    @classmethod
    def incompatible(cls, reason: str) -> Compatibility:
        """Return the verdict that old values cannot be used."""
        return cls(Outcome.INCOMPATIBLE, reason=reason)

    @property
    def is_as_is(self) -> bool:
        """Whether old bytes can be read and new ones written without further ado."""
        return self.outcome is Outcome.AS_IS

    @property
    def is_after_migration(self) -> bool:
        """Whether values must be rewritten first."""
        return self.outcome is Outcome.AFTER_MIGRATION

    @property
    def is_reconfigured(self) -> bool:
        """Whether `serializer` takes the new serializer's place."""
        return self.outcome is Outcome.RECONFIGURED

    @property
    def is_incompatible(self) -> bool:
        """Whether the old values are lost to the new serializer."""
        return self.outcome is Outcome.INCOMPATIBLE


Compatibility.AS_IS = Compatibility(Outcome.AS_IS)
Compatibility.AFTER_MIGRATION = Compatibility(Outcome.AFTER_MIGRATION)
Compatibility.INCOMPATIBLE = Compatibility(Outcome.INCOMPATIBLE)


def compose(
    nested: Sequence[tuple[str, TypeSerializer[Any], Compatibility]],
    rebuild: Callable[[list[TypeSerializer[Any]]], TypeSerializer[Any]],
    outer: Compatibility = Compatibility.AS_IS,
) -> Compatibility:
    """Add up the verdicts on the parts of a composite (SER-01).

    Incompatible outranks migration, migration outranks reconfiguration, reconfiguration outranks as is; the
    composite's own verdict `outer` takes part.

    Parameters
    ----------
    nested : sequence of (name, new serializer, verdict on it)
        In the order in which `rebuild` wants the serializers.
    rebuild : callable
        Makes the composite from its parts; called for a reconfigured outcome, with the reconfigured parts in
        their places and the new ones elsewhere.
    outer : Compatibility
        The verdict on the composite itself, parts aside; never reconfigured.
    """
    if outer.is_reconfigured:
        raise ValueError("a composite is reconfigured through its parts; give the verdict on the part")
    verdicts = [("", outer), *((name, verdict) for name, _, verdict in nested)]
    name, worst = max(verdicts, key=lambda verdict: _SEVERITY[verdict[1].outcome])
    reason = f"{name}: {worst.reason}" if name and worst.reason else worst.reason
    if not worst.is_reconfigured:
        return Compatibility(worst.outcome, reason=reason)
    parts = [new if verdict.serializer is None else verdict.serializer for _, new, verdict in nested]
    return Compatibility.reconfigured_with(rebuild(parts), reason)
