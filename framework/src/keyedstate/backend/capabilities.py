"""What a backend can do, in a form that the kernel and the contract kit read."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from keyedstate.config import ConfigOption


class Level(enum.Enum):
    """How far a backend supports a capability; the contract kit tests what is claimed."""

    FULL = "full"
    PARTIAL = "partial"
    NOT_YET = "not yet"
    NEVER = "never"

    @property
    def usable(self) -> bool:
        """Whether a job may use the capability."""
        return self in (Level.FULL, Level.PARTIAL)


class StateKind(enum.Enum):
    """The kinds of keyed state (Flink's ``StateDescriptor.Type``)."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"


class Capability(enum.Enum):
    """One thing that a backend may support, and that the types of its tables do not show."""

    #: States of every kind; where that is claimed as partial, those of `BackendDescription.state_kinds`.
    STATE_KINDS = "kinds of state"
    #: `Snapshot.write` may run in another thread while the owner continues to change its tables.
    ASYNC_SNAPSHOT = "asynchronous snapshots"
    #: A restore may take any key-group range out of snapshots that were taken with other ranges.
    RESCALING = "rescaling"
    #: A read returns the very object that was written, without serialization.
    OBJECTS_BY_REFERENCE = "objects kept by reference"
    #: Tables of timers are a `keyedstate.backend.TimerTable`.  The driver has no table to check that.
    TIMERS_IN_ORDER = "timers in the order of time"
    #: State may exceed the memory of its process.
    LARGER_THAN_MEMORY = "state larger than memory"


@dataclass(frozen=True)
class BackendDescription:
    """What `keyedstate_describe_backend` returns.

    Attributes
    ----------
    name : str
        The name users choose it by; equal to the entry point's name.
    version : str
        The plugin's version.
    hook_api : tuple of (int, int)
        The oldest and the newest hook API version that the plugin was written for, both included.
    summary : str
        One line for ``keyedstate plugins list``.
    capabilities : mapping of Capability to Level
        A capability that is not named counts as `Level.NEVER`.
    state_kinds : collection of StateKind
        The supported kinds where `Capability.STATE_KINDS` is claimed as partial.
    options : tuple of ConfigOption
        The plugin's own options, named ``<backend name>.<option>``.
    build : str
        How this installation was built, where that can differ (``compiled``, ``not compiled``, the version of
        a linked library); ``keyedstate doctor`` shows it.
    build_problem : str
        Why this installation is worse than it could be, and the way out, in full sentences; ``keyedstate
        doctor`` warns with it.  Empty without a problem.

    Raises
    ------
    ValueError
        If `hook_api` is not a pair of whole numbers, the smaller one first.
    """

    name: str
    version: str
    hook_api: tuple[int, int]
    summary: str
    capabilities: Mapping[Capability, Level]
    state_kinds: Collection[StateKind] = ()
    options: tuple[ConfigOption[object], ...] = field(default=())
    build: str = ""
    build_problem: str = ""

    def __post_init__(self) -> None:
        match self.hook_api:
            case (int() as oldest, int() as newest) if oldest <= newest:
                pass
            case _:
                raise ValueError(f"hook_api must be a pair (oldest, newest), and not {self.hook_api!r}")

    def level(self, capability: Capability) -> Level:
        """Return the level of one capability."""
        return self.capabilities.get(capability, Level.NEVER)

    def supports(self, kind: StateKind) -> bool:
        """Return whether a job may register states of a kind."""
        level = self.level(Capability.STATE_KINDS)
        return level is Level.FULL or (level is Level.PARTIAL and kind in self.state_kinds)
