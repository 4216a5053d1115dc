"""The keyed backend: the states of one operator over one key-group range, registered by name.

It sits between the state handles, which know a current key, and the tables of a state backend plugin,
which do not (Flink's ``AbstractKeyedStateBackend``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    Capability,
    EntryChange,
    NativeSnapshot,
    NativeSnapshotStrategy,
    StateHandle,
    StateMeta,
    TableChanges,
)
from keyedstate.errors import (
    NullNamespaceError,
    WorkingFolderError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state.clock import Clock, system_clock
from keyedstate.state.context import KeyContext, KeySequence
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor
from keyedstate.state.registry.change_tracking import ChangeTracker, apply_changes
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.latency import LatencyTracker
from keyedstate.state.registry.registered_states import RegisteredStates
from keyedstate.state.registry.restored_tables import check_keys
from keyedstate.state.registry.restored_types import with_one_type_each
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.state.ttl.expiring_states import ExpiringStates
from keyedstate.types import VOID, VOID_NAMESPACE, TypeSerializer

H = TypeVar("H", bound=StateAccessor)


class KeyedStateBackend:
    """The states of one operator over one key-group range.

    Use `open`.  Everything but `SnapshotTask.run` belongs to one owner thread.
    """

    def __init__(
        self,
        chosen: ChosenBackend,
        context: BackendContext,
        key_serializer: TypeSerializer[Any],
        tables: dict[str, AnyStateTable],
        track_changes: bool,
        clock: Clock,
        event_time: bool,
    ) -> None:
        backend = self._backend = chosen.backend
        self._context = context
        self._key_serializer = key_serializer
        #: Every table, also of restored states that nobody has registered in this run: they are kept and
        #: written into each snapshot, so that a state survives a program that does not use it.
        self._tables = tables
        self._tracker: ChangeTracker | None = None
        if track_changes:
            self._tracker = ChangeTracker()
        #: None where accesses are not sampled.
        self.latency = None if chosen.latency is None else LatencyTracker(chosen.latency)
        #: Where the order of timers is to be kept: the option ``timers.queue``.
        self.timer_queue = chosen.timer_queue
        self.current = KeyContext(key_serializer, context.key_groups, context.max_parallelism)
        self._expiring = ExpiringStates(clock, event_time, self.current)
        #: See `ExpiringStates.on_record`.
        self.on_record = self._expiring.on_record
        self._states = RegisteredStates(
            chosen,
            context,
            key_serializer,
            tables,
            tracker=self._tracker,
            latency=self.latency,
            current=self.current,
            expiring=self._expiring,
        )
        self._strategy = backend.create_snapshot_strategy(context)
        self._spill_manager = backend.create_spill_manager(context)
        if self._spill_manager is not None:
            context.closing.callback(self._spill_manager.close)
        self._snapshots: list[SnapshotTask] = []
        #: Writes into tables what somebody, as the timer queues, keeps beside them; called before anything
        #: looks at all tables.
        self.write_back: Callable[[], None] = lambda: None

    @classmethod
    def open(
        cls,
        chosen: ChosenBackend,
        keys: KeySpace,
        handles: Sequence[StateHandle] = (),
        *,
        local_base: Path | None = None,
        track_changes: bool = False,
        clock: Clock = system_clock,
        event_time: bool = True,
    ) -> KeyedStateBackend:
        """Open an instance, empty or restored.

        Parameters
        ----------
        chosen : ChosenBackend
        keys : KeySpace
        handles : sequence of StateHandle
            Snapshots to restore from; each is read only where it intersects the key groups of `keys`.
        local_base : Path, optional
            Where the instance may make its private folder; the system's temporary folder by default.
        track_changes : bool, default False
            Whether `begin_epoch` and `changes_since` may be called: the restored state is what changes are
            changes of.
        clock : callable, optional
            Returns processing time in milliseconds since 1970 UTC; the machine's by default.
        event_time : bool, default True
            Whether states that expire in event time may be registered, because `advance_watermark` is called.

        Raises
        ------
        StateMigrationError
            Where the restored state has keys of another type.
        WorkingFolderError
            Where the backend's folder on the local disk cannot be made or written.
        """
        base = Path(tempfile.gettempdir()) if local_base is None else local_base
        context = BackendContext(keys.key_groups, keys.max_parallelism, chosen.options, base)
        try:
            for meta in (meta for handle in handles for meta in handle.states):
                check_keys(meta, keys.key_serializer)
            restore = chosen.backend.create_restore_operation(with_one_type_each(handles, clock()), context)
            return cls(
                chosen, context, keys.key_serializer, restore.restore(), track_changes, clock, event_time
            )
        except OSError as error:
            context.closing.close()
            path, reason = error.filename or base, error.strerror or str(error)
            raise WorkingFolderError(str(path), reason) from error
        except BaseException:
            context.closing.close()
            raise

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of this instance."""
        return self._context.key_groups

    @property
    def max_parallelism(self) -> int:
        """The number of key groups of the operator."""
        return self._context.max_parallelism

    @property
    def backend_name(self) -> str:
        """The name of the state backend."""
        return self._backend.name

    @property
    def orders_timers(self) -> bool:
        """Whether tables of timers keep them in the order of time."""
        return self._backend.description.level(Capability.TIMERS_IN_ORDER).usable

    # -- rows of one key after the other ----------------------------------------------------------------

    def begin_write_behind(self, keys: KeySequence) -> None:
        """Let states keep what the current key has at hand, until `end_write_behind` is called.

        For the time in which nothing but a function and its handles uses the state: tables do not have what
        handles hold.

        Parameters
        ----------
        keys : KeySequence
            From which the current key is taken meanwhile, with `KeyContext.turn`.
        """
        self.current.sequence = keys
        for handle in self._states.cached:
            handle._begin_write_behind()

    def end_write_behind(self) -> None:
        """Write what handles hold into the tables, and let them hold nothing from now on."""
        for handle in self._states.cached:
            handle._end_write_behind()

    # -- the current key ------------------------------------------------------------------------------

    def set_current_key(self, key: object, key_group: int | None = None) -> None:
        """Make a key the current one.

        Parameters
        ----------
        key : object
        key_group : int, optional
            Its key group where the caller knows it; otherwise it is computed as Spark does.

        Raises
        ------
        ValueTypeError
            Where the key is not of the key type.
        ValueError
            Where it belongs to another instance.
        """
        serializer = self._key_serializer
        if not serializer.is_value(key):
            self.current.refuse(key)
        if serializer.needs_canonical:
            key = serializer.canonical(key)
        if key_group is None:
            key_group = self.current.key_group_of(key)
        self.current.check_own(key, key_group)
        self.current.key = key
        self.current.key_group = key_group
        if self.on_record is not None:
            self.on_record()

    # -- time -----------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """What gives processing time."""
        return self._expiring.clock

    @property
    def has_event_time(self) -> bool:
        """Whether the operator knows the event time of its rows."""
        return self._expiring.has_event_time

    @property
    def watermark(self) -> int:
        """The event time in milliseconds up to which all rows have come; `BEFORE_TIME` at first."""
        return self._expiring.watermark

    def advance_watermark(self, watermark: int) -> None:
        """Move event time forward; it never goes back, so an earlier watermark changes nothing."""
        self._expiring.advance_watermark(watermark)

    # -- registration -----------------------------------------------------------------------------------

    def get_state(
        self,
        descriptor: StateDescriptor[H],
        namespace: object = VOID_NAMESPACE,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> H:
        """Return the handle of a state, set to a namespace; registers the state at its first look-up.

        Raises
        ------
        StateKindMismatchError
            Where the name holds another kind of state, restored or registered.
        StateMigrationError
            Where its types do not fit.
        StateConversionError
            Where restored values cannot be given to the program, although their types fit.
        MissingCapabilityError
            Where the backend lacks this kind of state.
        GenericTypeForbiddenError
            Where its values are pickled and `open` was told to forbid that.
        MissingEventTimeError
            Where it expires in event time and `open` was told that there is none.
        InvalidDescriptorError
            Where an earlier look-up in this run had another time to live.
        NullNamespaceError
        StateValueError
            Where the namespace is not of its type.
        """
        handle = self._states.get(descriptor, namespace, namespace_serializer)
        self.on_record = self._expiring.on_record
        return handle

    def internal_table(self, name: str, namespace_serializer: TypeSerializer[Any]) -> AnyStateTable:
        """Return the table of a set of (key, namespace) that the framework keeps: entries without values.

        It is in every snapshot and delta as the tables of states are, and belongs to no handle.

        Parameters
        ----------
        name : str
            EpochStart with `TIMER_TABLES`, so that no declared state has it.
        namespace_serializer : TypeSerializer

        Raises
        ------
        StateKindMismatchError, StateMigrationError, MissingCapabilityError
            As `get_state`.
        """
        return self._states.internal_table(name, namespace_serializer)

    def registered_states(self) -> list[str]:
        """Return the names of the states that were registered in this run."""
        return list(self._states.accessors)

    def accessor_at(
        self, state: str, key: Any, key_group: int, namespace: object = VOID_NAMESPACE
    ) -> StateAccessor:
        """Return a handle that stays at one key and namespace, whatever the current key is.

        Parameters
        ----------
        state : str
            The name of a registered state.
        key, key_group
            As `KeyContext.locate` gives them.
        namespace : object, optional

        Raises
        ------
        KeyError
            Where no state of that name was registered.
        NullNamespaceError
        """
        context = KeyContext(self._key_serializer, self._context.key_groups, self._context.max_parallelism)
        context.check_own(key, key_group)
        context.key, context.key_group = key, key_group
        return self._states.accessors[state].at(context, namespace)

    # -- over all keys ------------------------------------------------------------------------------------

    def get_keys(self, state: str, namespace: object = VOID_NAMESPACE) -> Iterator[Any]:
        """Yield each key that has an entry in one namespace of a state; nothing for an unknown state.

        Works on restored states before they are registered.

        Raises
        ------
        NullNamespaceError
        """
        if namespace is None:
            raise NullNamespaceError(state)
        self.write_back()
        table = self._tables.get(state)
        return iter(()) if table is None else table.keys(namespace)

    def get_keys_and_namespaces(self, state: str) -> Iterator[tuple[Any, Any]]:
        """Yield each (key, namespace) of a state once; nothing for an unknown state."""
        self.write_back()
        table = self._tables.get(state)
        return iter(()) if table is None else table.keys_and_namespaces()

    def apply_to_all_keys(
        self,
        descriptor: StateDescriptor[H],
        function: Callable[[Any, H], None],
        namespace: object = VOID_NAMESPACE,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> None:
        """Call ``function(key, handle)`` with each key of one namespace as the current key.

        The keys are listed first, so the function may change and clear state.  The current key, and the
        namespace of a handle that was there before, are put back at the end.
        """
        known = self._states.accessors.get(descriptor.name)
        namespace_before = namespace if known is None else known.namespace
        handle = self.get_state(descriptor, namespace, namespace_serializer)
        current = self.current
        before = current.key, current.key_group
        keys, key_groups = current.locate(self.get_keys(descriptor.name, namespace))
        self._expiring.move_time()
        try:
            for current.key, current.key_group in zip(keys, key_groups, strict=True):
                # The function may have gone to another namespace.
                handle.set_namespace(namespace)
                function(current.key, handle)
        finally:
            current.key, current.key_group = before
            handle.set_namespace(namespace_before)

    def num_entries(self) -> int:
        """Return the number of entries over all states."""
        self.write_back()
        return sum(len(table) for table in self._tables.values())

    def entries_by_state(self) -> dict[str, int]:
        """Return the number of entries of each state."""
        self.write_back()
        return {name: len(table) for name, table in self._tables.items()}

    def metas(self) -> list[StateMeta]:
        """Return what is known of each state, restored ones included."""
        return [table.meta for table in self._tables.values()]

    # -- epochs -------------------------------------------------------------------------------------------

    @property
    def snapshots_asynchronously(self) -> bool:
        """Whether a snapshot may be written in another thread while the state goes on changing."""
        return self._backend.description.level(Capability.ASYNC_SNAPSHOT).usable

    def snapshot(self, checkpoint_id: int) -> SnapshotTask:
        """Run the synchronous part of a snapshot and return the rest as a task.

        The task must be run or cancelled; until then it may hold on to memory.  Where the backend does
        not claim asynchronous snapshots, run it before the next change.
        """
        self.write_back()
        filters = self._expiring.snapshot_filters()
        started = time.perf_counter()
        captured = self._strategy.prepare(checkpoint_id, self._tables)
        synchronous_ms = (time.perf_counter() - started) * 1000.0
        task = SnapshotTask(checkpoint_id, captured, synchronous_ms, self.snapshots_asynchronously, filters)
        self._snapshots = [other for other in self._snapshots if not other.done]
        self._snapshots.append(task)
        return task

    def metrics(self) -> Mapping[str, int]:
        """Return what the backend's own engine says of itself, where the user has asked for it."""
        return self._strategy.metrics()

    def native_snapshot(self, checkpoint_id: int) -> NativeSnapshot | None:
        """Capture the backend's own files, or return None where it has none, or is not to hand them over.

        To be released by the caller.
        """
        if not isinstance(self._strategy, NativeSnapshotStrategy):
            return None
        self.write_back()
        return self._strategy.prepare_native(checkpoint_id, self._tables)

    def begin_epoch(self, epoch: int) -> None:
        """Count every change from now on to an epoch; epochs ascend.

        Raises
        ------
        ValueError
            Where the instance was not opened to track changes, or the epoch is not above the one before.
        """
        self.write_back()
        self._tracked().begin_epoch(epoch)

    def changes_since(self, epoch: int) -> dict[str, TableChanges[Any, Any, Any]]:
        """Capture what changed in each state after an epoch; release each when it is written.

        Where the backend claims no asynchronous snapshots, read them before the next change.

        Raises
        ------
        UnknownChangesError
            Where changes are known since a later epoch only.
        """
        self.write_back()
        return self._tracked().changes_since(epoch)

    def forget_changes(self, epoch: int) -> None:
        """Free what is known of the changes up to and including an epoch that a checkpoint holds."""
        self._tracked().forget_changes(epoch)

    def can_apply_changes(self, states: Sequence[StateMeta]) -> bool:
        """Return whether `apply_changes` may be called for what another instance changed of these states.

        It may where all are here, with the same types, and none has a time to live: what cleans those up
        knows only the changes that were made through handles.
        """
        mine = {meta.name: meta.to_json() for meta in self.metas()}
        same = all(mine.get(meta.name) == meta.to_json() for meta in states)
        return same and not self._expiring

    def apply_changes(self, state: str, changes: Iterable[EntryChange]) -> None:
        """Write entries of a state, or remove them, between two epochs; of one entry the last change counts.

        They count to the state before the next epoch.
        """
        apply_changes(self._tables[state], changes)

    def _tracked(self) -> ChangeTracker:
        if self._tracker is None:
            raise ValueError("this keyed backend tracks no changes; open it with track_changes=True")
        return self._tracker

    def end_epoch(self) -> None:
        """Remove what expiry indexes and the backend know to be expired; let key groups be spilled."""
        self.write_back()
        self._expiring.drop_expired(self._tables)
        if self._spill_manager is not None:
            self._spill_manager.balance(self._tables)

    def close(self) -> None:
        """Cancel running snapshots and free everything; calling it again does nothing."""
        for task in self._snapshots:
            task.cancel()
        self._context.closing.close()
