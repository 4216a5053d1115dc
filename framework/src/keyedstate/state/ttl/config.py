"""How long entries of a state live, and who removes them: counterpart of Flink's ``StateTtlConfig``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidTtlError
from keyedstate.state.clock import END_OF_TIME


class UpdateType(enum.Enum):
    """What gives an entry a new time."""

    ON_CREATE_AND_WRITE = "on create and write"
    ON_READ_AND_WRITE = "on read and write"


class Visibility(enum.Enum):
    """Whether a read shows an expired entry that is still stored; it then shows it once and removes it."""

    NEVER_RETURN_EXPIRED = "never return expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return expired if not cleaned up"


class TtlClock(enum.Enum):
    """The clock of a time to live."""

    PROCESSING_TIME = "processing time"
    #: The watermark: a replay expires what the first run did.
    EVENT_TIME = "event time"


@dataclass(frozen=True)
class IncrementalCleanup:
    """Each access to the state visits a few entries, in turn, and removes those that are expired.

    Attributes
    ----------
    entries : int
        Visited per access.
    every_record : bool
        Whether every record counts as an access, also one that does not use the state.
    """

    entries: int = 5
    every_record: bool = False

    def __post_init__(self) -> None:
        if self.entries < 1:
            raise InvalidTtlError(
                f"the incremental clean-up looks at {self.entries} entries; let it look at one at least"
            )


@dataclass(frozen=True)
class Ttl:
    """The time to live of a state: of a value, of each element of a list, of each entry of a map.

    Attributes
    ----------
    ms : int
        An entry that was written this long ago is expired (at exactly this age, too).  `of` takes durations.
    update : UpdateType
    visibility : Visibility
    clock : TtlClock
    background_cleanup : bool
        Whether unused expired entries are removed: by the backend where its tables do so, otherwise by an
        `IncrementalCleanup` with its defaults.
    incremental : IncrementalCleanup, optional
        Runs on every backend, also without `background_cleanup`.
    full_snapshot : bool
        Whether full snapshots leave expired entries out.  The running state keeps them.
    expiry_index : bool
        Whether the end of an epoch removes the entries that expired in it, used or not.  Costs a reference
        per entry, a look-up per expiry, and at a restore a pass over the state.

    Raises
    ------
    InvalidTtlError
        For a time to live that is not positive.

    Notes
    -----
    Flink's ``UpdateType.Disabled`` is a state without a `Ttl`.  Settings belong to the program, timestamps to
    the state: each restart may have other settings, or none.
    """

    ms: int
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED
    clock: TtlClock = TtlClock.PROCESSING_TIME
    background_cleanup: bool = True
    incremental: IncrementalCleanup | None = None
    full_snapshot: bool = False
    expiry_index: bool = False

    def __post_init__(self) -> None:
        if self.ms.__class__ is not int or not 0 < self.ms <= END_OF_TIME:
            raise InvalidTtlError(
                f"it is {self.ms!r} milliseconds; give a whole number from 1 to {END_OF_TIME}, or leave ttl= "
                "out where entries live for ever"
            )
        for name, kind in (("update", UpdateType), ("visibility", Visibility), ("clock", TtlClock)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                choices = " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise InvalidTtlError(f"its {name} is {given!r}; give {choices}")

    def __str__(self) -> str:
        changed = [
            f"{setting.name} {value.value if isinstance(value, enum.Enum) else value}"
            for setting in fields(self)[1:]
            if (value := getattr(self, setting.name)) != setting.default
        ]
        return f"{self.ms} ms" + (f" ({', '.join(changed)})" if changed else "")

    @classmethod
    def of(
        cls,
        duration: Duration,
        *,
        update: UpdateType = UpdateType.ON_CREATE_AND_WRITE,
        visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED,
        clock: TtlClock = TtlClock.PROCESSING_TIME,
        background_cleanup: bool = True,
        incremental: IncrementalCleanup | None = None,
        full_snapshot: bool = False,
        expiry_index: bool = False,
    ) -> Ttl:
        """Return a time to live of ``"7 days"``, ``"90 min"``, ``"100 ms"``, a timedelta or milliseconds.

        Raises `InvalidTtlError` and `InvalidDurationError`.
        """
        return cls(
            milliseconds(duration),
            update,
            visibility,
            clock,
            background_cleanup,
            incremental,
            full_snapshot,
            expiry_index,
        )
