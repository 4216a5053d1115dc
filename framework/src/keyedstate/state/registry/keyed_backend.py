"""The keyed backend: the states of one operator over one key-group range, registered by name.

It sits between the state handles, which know a current key, and the tables of a state backend plugin,
which do not (Flink's ``AbstractKeyedStateBackend``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    Capability,
    EntryChange,
    ExpiryCleanup,
    NativeSnapshot,
    NativeSnapshotStrategy,
    StateHandle,
    StateKind,
    StateMeta,
    TableChanges,
)
from keyedstate.errors import (
    InvalidDescriptorError,
    MissingEventTimeError,
    NullNamespaceError,
    StateKindMismatchError,
    StateMigrationError,
    WorkingFolderError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.object_cache import weight_of
from keyedstate.state.clock import BEFORE_TIME, UNKNOWN_TIME, Clock, StateTime, system_clock
from keyedstate.state.context import KeyContext, KeysInTurn
from keyedstate.state.kinds import handles as state_base
from keyedstate.state.kinds.handles import StateDescriptor, check_value
from keyedstate.state.registry.change_tracking import ChangeTracker
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.latency import LatencyTracker
from keyedstate.state.registry.restored_tables import adapted, adopt, check_keys
from keyedstate.state.registry.restored_types import with_one_type_each
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.state.ttl.config import TtlClock
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.state.ttl.state_handle import create_ttl_handle
from keyedstate.types import VOID, VOID_NAMESPACE, TypeSerializer, refuse_generic

H = TypeVar("H", bound=state_base.StateHandle)


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
        self._generic_types = chosen.generic_types
        #: Every table, also of restored states that nobody has registered in this run: they are kept and
        #: written into each snapshot, so that a state survives a program that does not use it.
        self._tables = tables
        #: The tables through which handles change state: those above, or what notes their changes.
        self._changed = tables
        self._tracker: ChangeTracker | None = None
        if track_changes:
            self._tracker = ChangeTracker()
            self._changed = {name: self._tracker.track(table) for name, table in tables.items()}
        #: None where accesses are not sampled.
        self.latency = None if chosen.latency is None else LatencyTracker(chosen.latency)
        #: Where the order of timers is to be kept: the option ``timers.queue``.
        self.timer_queue = chosen.timer_queue
        self._handles: dict[str, state_base.StateHandle] = {}
        #: Those that may hold values: what comes back from the table is what was put there, and nobody but
        #: `update` changes it.
        self._holding: list[state_base.StateHandle] = []
        #: What was asked for at the first look-up; a reconfigured serializer may stand in its place.
        self._requested: dict[str, StateMeta] = {}
        self._strategy = backend.create_snapshot_strategy(context)
        self._spill_manager = backend.create_spill_manager(context)
        if self._spill_manager is not None:
            context.closing.callback(self._spill_manager.close)
        self._snapshots: list[SnapshotTask] = []
        self.current = KeyContext(key_serializer, context.key_groups, context.max_parallelism)
        self._clock = clock
        self._has_event_time = event_time
        self._watermark = BEFORE_TIME
        self._processing_time, self._event_time = StateTime(), StateTime()
        self._expiries: dict[str, StateExpiry] = {}
        #: To be called once per record, after the current key is set and before its states are used; None
        #: where no state has a time to live, so that records cost nothing then.
        self.on_record: Callable[[], None] | None = None
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

    def hold_values(self, keys: KeysInTurn) -> None:
        """Let states keep what the current key has at hand, until `write_held` is called.

        For the time in which nothing but a function and its handles uses the state: tables do not have what
        handles hold.

        Parameters
        ----------
        keys : KeysInTurn
            From which the current key is taken meanwhile, with `KeyContext.turn`.
        """
        self.current.in_turn = keys
        for handle in self._holding:
            handle._hold()

    def write_held(self) -> None:
        """Write what handles hold into the tables, and let them hold nothing from now on."""
        for handle in self._holding:
            handle._stop_holding()

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
        return self._clock

    @property
    def has_event_time(self) -> bool:
        """Whether the operator knows the event time of its rows."""
        return self._has_event_time

    @property
    def watermark(self) -> int:
        """The event time in milliseconds up to which all rows have come; `BEFORE_TIME` at first."""
        return self._watermark

    def advance_watermark(self, watermark: int) -> None:
        """Move event time forward; it never goes back, so an earlier watermark changes nothing."""
        self._watermark = max(self._watermark, watermark)
        self._move_time()

    def _move_time(self) -> None:
        """Let the states with a time to live see the present time."""
        self._move_processing_time()
        self._event_time.set(self._watermark, self.current.timestamp)

    def _move_processing_time(self) -> None:
        line, now = self._processing_time, self._clock()
        back = now < line.now
        line.now = line.stamp = now
        if back:
            for expiry in self._expiries.values():
                expiry.cleanup.time_went_back()

    def _begin_record(self) -> None:
        self._move_time()
        for expiry in self._expiries.values():
            if expiry.cleanup.every_record:
                expiry.accessed()

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
        if namespace is None or namespace_serializer is None:
            raise NullNamespaceError(descriptor.name)
        if not namespace_serializer.is_value(namespace):
            check_value(descriptor.name, namespace_serializer, namespace, "the namespace")
        handle = self._handles.get(descriptor.name)
        meta = StateMeta(
            descriptor.name,
            descriptor.kind,
            self._key_serializer,
            namespace_serializer,
            descriptor.serializer,
        )
        if handle is None:
            handle = self._register(descriptor, meta)
        else:
            _check_same_state(self._requested[descriptor.name], meta)
            self._check_same_ttl(descriptor)
        handle.set_namespace(namespace)
        return cast(H, handle)

    def _register(self, descriptor: StateDescriptor[Any], meta: StateMeta) -> state_base.StateHandle:
        self._backend.require(meta.kind, meta.name)
        if not self._generic_types:
            refuse_generic(meta.name, meta.value_serializer)
        expiry = None
        if descriptor.ttl is not None:
            self._move_time()
            in_event_time = descriptor.ttl.clock is TtlClock.EVENT_TIME
            if in_event_time and not self._has_event_time:
                raise MissingEventTimeError(meta.name)
            line = self._event_time if in_event_time else self._processing_time
            expiry = StateExpiry(descriptor.ttl, meta.kind, line)
            meta = replace(meta, expiry=expiry.for_backend())
        table, changed = self._table_for(meta, UNKNOWN_TIME if expiry is None else expiry.time.stamp)
        handle: state_base.StateHandle
        if expiry is None:
            handle = descriptor.create_handle(changed, self.current)
        else:
            handle = create_ttl_handle(descriptor, changed, self.current, expiry)
            expiry.attach(changed, cleans_itself=isinstance(table, ExpiryCleanup))
        if self.latency is not None:
            self.latency.track(handle, meta)
        # Only now: a refused registration leaves everything as it was.
        self._tables[meta.name] = table
        self._changed[meta.name] = changed
        self._handles[meta.name] = handle
        if expiry is None and self._comes_back(meta.value_serializer):
            self._holding.append(handle)
        self._requested[meta.name] = meta
        if expiry is not None:
            self._expiries[meta.name] = expiry
            if in_event_time or expiry.cleanup.every_record:
                self.on_record = self._begin_record
            elif self.on_record is None:
                self.on_record = self._move_processing_time
        return handle

    def internal_table(self, name: str, namespace_serializer: TypeSerializer[Any]) -> AnyStateTable:
        """Return the table of a set of (key, namespace) that the framework keeps: entries without values.

        It is in every snapshot and delta as the tables of states are, and belongs to no handle.

        Parameters
        ----------
        name : str
            Beginning with `TIMER_TABLES`, so that no declared state has it.
        namespace_serializer : TypeSerializer

        Raises
        ------
        StateKindMismatchError, StateMigrationError, MissingCapabilityError
            As `get_state`.
        """
        meta = StateMeta(name, StateKind.VALUE, self._key_serializer, namespace_serializer, VOID)
        self._backend.require(meta.kind, name)
        self._tables[name], self._changed[name] = self._table_for(meta, UNKNOWN_TIME)
        return self._changed[name]

    def _table_for(self, meta: StateMeta, stamp: int) -> tuple[AnyStateTable, AnyStateTable]:
        """Return the table of a state, new or as it was restored, and the one through which it is changed."""
        table = self._tables.get(meta.name)
        if table is None:
            table = self._backend.create_state_table(meta, self._context)
        else:
            table = self._adopted(table, meta, stamp)
        changed = self._changed.get(meta.name)
        if changed is None or table is not self._tables[meta.name]:
            changed = table if self._tracker is None else self._tracker.track(table)
        return table, changed

    def _comes_back(self, serializer: TypeSerializer[Any]) -> bool:
        """Return whether a table gives back the very values that were put, which nobody can have changed."""
        by_reference = self._backend.description.level(Capability.OBJECTS_BY_REFERENCE).usable
        return serializer.immutable if by_reference else weight_of(serializer) is not None

    def _check_same_ttl(self, descriptor: StateDescriptor[Any]) -> None:
        """Refuse a second look-up whose settings would be ignored."""
        expiry = self._expiries.get(descriptor.name)
        if expiry is not None and expiry.ttl != descriptor.ttl:
            raise InvalidDescriptorError(
                descriptor.name,
                f"its time to live is {descriptor.ttl} here and {expiry.ttl} where it was declared before; "
                "declare it once, or twice alike",
            )

    def _adopted(self, restored: AnyStateTable, meta: StateMeta, stamp: int) -> AnyStateTable:
        """Return the table under which a restored state goes on."""
        new = adapted(restored.meta, meta)
        return adopt(restored, new, stamp, lambda: self._backend.create_state_table(new, self._context))

    def registered_states(self) -> list[str]:
        """Return the names of the states that were registered in this run."""
        return list(self._handles)

    def handle_at(
        self, state: str, key: Any, key_group: int, namespace: object = VOID_NAMESPACE
    ) -> state_base.StateHandle:
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
        return self._handles[state].at(context, namespace)

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
        known = self._handles.get(descriptor.name)
        namespace_before = namespace if known is None else known.namespace
        handle = self.get_state(descriptor, namespace, namespace_serializer)
        current = self.current
        before = current.key, current.key_group
        keys, key_groups = current.locate(self.get_keys(descriptor.name, namespace))
        self._move_time()
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
        if self._expiries:
            # What a filtered snapshot leaves out is what is expired when it is taken.
            self._move_time()
        started = time.perf_counter()
        captured = self._strategy.prepare(checkpoint_id, self._tables)
        filters = {
            name: expiry.snapshot_filter()
            for name, expiry in self._expiries.items()
            if expiry.ttl.full_snapshot
        }
        synchronous_ms = (time.perf_counter() - started) * 1000.0
        task = SnapshotTask(checkpoint_id, captured, synchronous_ms, self.snapshots_asynchronously, filters)
        self._snapshots = [other for other in self._snapshots if not other.done]
        self._snapshots.append(task)
        return task

    def figures(self) -> Mapping[str, int]:
        """Return what the backend's own engine says of itself, where the user has asked for it."""
        return self._strategy.figures()

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
        return same and not self._expiries

    def apply_changes(self, state: str, changes: Iterable[EntryChange]) -> None:
        """Write entries of a state, or remove them, between two epochs; of one entry the last change counts.

        They count to the state before the next epoch.
        """
        # Together, where they are of one namespace: a table of columns takes many as fast as one.
        last = {(change.namespace, change.key): change for change in changes}
        together: dict[tuple[Any, bool], list[EntryChange]] = {}
        for change in last.values():
            together.setdefault((change.namespace, change.present), []).append(change)
        table = self._tables[state]
        for (namespace, present), some in together.items():
            _, groups, _, keys, _, values = zip(*some, strict=True)
            if present:
                table.put_many(groups, keys, namespace, values)
            else:
                table.remove_many(groups, keys, namespace)

    def _tracked(self) -> ChangeTracker:
        if self._tracker is None:
            raise ValueError("this keyed backend tracks no changes; open it with track_changes=True")
        return self._tracker

    def end_epoch(self) -> None:
        """Remove what expiry indexes and the backend know to be expired; let key groups be spilled."""
        self.write_back()
        if self._expiries:
            self._move_time()
        for name, expiry in self._expiries.items():
            table = self._tables[name]
            if expiry.index is not None:
                expiry.index.expire()
            if expiry.ttl.background_cleanup and isinstance(table, ExpiryCleanup):
                table.drop_expired()
        if self._spill_manager is not None:
            self._spill_manager.balance(self._tables)

    def close(self) -> None:
        """Cancel running snapshots and free everything; calling it again does nothing."""
        for task in self._snapshots:
            task.cancel()
        self._context.closing.close()


def _check_same_state(registered: StateMeta, requested: StateMeta) -> None:
    """Refuse a second look-up that asks for something else than the first registered."""
    if registered.kind is not requested.kind:
        raise StateKindMismatchError(
            requested.name, registered.kind.value, requested.kind.value, restored=False
        )
    parts = (
        ("namespace", registered.namespace_serializer, requested.namespace_serializer),
        ("value", registered.value_serializer, requested.value_serializer),
    )
    for part, old, new in parts:
        if old != new:
            reason = "one state has one type within a run"
            raise StateMigrationError(requested.name, part, old, new, reason)
