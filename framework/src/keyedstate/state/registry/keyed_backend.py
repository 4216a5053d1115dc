"""The keyed backend: the states of one operator over one key-group range, registered by name.

It connects accessors, which know a current key, and the tables of a state backend plugin, which do not
(Flink's ``AbstractKeyedStateBackend``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    Capability,
    EntryChange,
    NativeSnapshot,
    NativeSnapshotStrategy,
    SpillableTable,
    StateHandle,
    StateMeta,
    TableChanges,
)
from keyedstate.errors import NullNamespaceError, WorkingFolderError
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

A = TypeVar("A", bound=StateAccessor)

#: Keys that `KeyedStateBackend.apply_to_all_keys` visits before memory is balanced.
_KEYS_AT_ONCE = 1_000


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
        backend = chosen.backend
        self.backend_name = backend.name
        self.key_groups = context.key_groups
        self.max_parallelism = context.max_parallelism
        #: Returns processing time in milliseconds since 1970 UTC.
        self.clock = clock
        self.has_event_time = event_time
        #: Whether tables of timers keep them in the order of time.
        self.orders_timers = backend.description.level(Capability.TIMERS_IN_ORDER).usable
        #: Whether another thread may write a snapshot while the state changes.
        self.snapshots_asynchronously = backend.description.level(Capability.ASYNC_SNAPSHOT).usable
        self.timer_queue = chosen.timer_queue
        #: Writes what timer queues cache into their tables; called before anything reads all tables.
        self.write_back: Callable[[], None] = lambda: None
        self.current = KeyContext(key_serializer, self.key_groups, self.max_parallelism)
        #: None where accesses are not sampled.
        self.latency = None if chosen.latency is None else LatencyTracker(chosen.latency)
        self._context = context
        #: Every table, also of restored states that the program has not registered: each snapshot has them,
        #: so that a state survives a program that does not use it.
        self._tables = tables
        self._tracker = ChangeTracker() if track_changes else None
        self._expiring = ExpiringStates(clock, event_time, self.current)
        #: See `ExpiringStates.on_record`.
        self.on_record = self._expiring.on_record
        self._states = RegisteredStates(
            chosen,
            context,
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
        """Open an instance, empty or restored from handles, of which it reads its own key groups.

        Its private folder is made in `local_base`, by default the system's temporary folder. Only with
        `track_changes` may `begin_epoch` and `changes_since` be called; the restored state is no change. With
        `event_time` the caller calls `advance_watermark`, so that states may expire in event time.

        Raises `StateMigrationError` where the restored state has keys of another type; `WorkingFolderError`
        where the backend's local folder cannot be made or written.
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

    # -- write-behind cache -----------------------------------------------------------------------------

    def begin_write_behind(self, keys: KeySequence) -> None:
        """Let accessors cache what is stored under the current key, until `end_write_behind`.

        The caller takes each current key from `keys`, and sets its position in `KeyContext.turn`.  Meanwhile
        only accessors may use the state: tables lack what these cache.
        """
        self.current.sequence = keys
        if self._spill_manager is not None:
            self._spill_manager.read_ahead(keys.keys, keys.key_groups)
        for accessor in self._states.cached:
            accessor._begin_write_behind()

    def end_write_behind(self) -> None:
        """Write what accessors cache into the tables."""
        for accessor in self._states.cached:
            accessor._end_write_behind()

    # -- the current key ------------------------------------------------------------------------------

    def set_current_key(self, key: object, key_group: int | None = None) -> None:
        """Make a key the current one; without a key group it is computed as Spark does.

        Raises `ValueTypeError` where the key is not of the key type; `ValueError` where it belongs to another
        instance.
        """
        current = self.current
        serializer = current.serializer
        if not serializer.is_value(key):
            current.refuse(key)
        if serializer.needs_canonical:
            key = serializer.canonical(key)
        if key_group is None:
            key_group = current.key_group_of(key)
        current.check_own(key, key_group)
        current.key = key
        current.key_group = key_group
        if self.on_record is not None:
            self.on_record()

    # -- time -----------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """The watermark in milliseconds since 1970 UTC; `BEFORE_TIME` at first."""
        return self._expiring.watermark

    def advance_watermark(self, watermark: int) -> None:
        """Move event time forward; it never goes back, so an earlier watermark changes nothing."""
        self._expiring.advance_watermark(watermark)

    # -- registration -----------------------------------------------------------------------------------

    def get_state(
        self,
        descriptor: StateDescriptor[A],
        namespace: object = VOID_NAMESPACE,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> A:
        """Return the accessor of a state, set to a namespace; the first look-up registers the state.

        Raises `StateKindMismatchError` where the name is that of another kind of state, restored or
        registered; `StateMigrationError` where its types are not compatible; `StateConversionError` where a
        restored value cannot be converted, although the types are compatible; `MissingCapabilityError` where
        the backend lacks this kind of state; `GenericTypeForbiddenError` where its values are pickled and
        ``types.generic`` forbids that; `MissingEventTimeError` where it expires in event time and the
        operator has none; `InvalidDescriptorError` where an earlier look-up in this run had another time to
        live; `NullNamespaceError`; `StateValueError` where the namespace is not of its type.
        """
        accessor = self._states.get(descriptor, namespace, namespace_serializer)
        self.on_record = self._expiring.on_record
        return accessor

    def internal_table(self, name: str, namespace_serializer: TypeSerializer[Any]) -> AnyStateTable:
        """Return the table of a set of (key, namespace) that the framework keeps: entries without values.

        Snapshots and deltas have it as they have the tables of states; no accessor uses it.  Its name begins
        with `TIMER_TABLES`, so that no declared state has it.

        Raises `StateKindMismatchError`, `StateMigrationError` and `MissingCapabilityError` as `get_state`.
        """
        return self._states.internal_table(name, namespace_serializer)

    def registered_states(self) -> list[str]:
        """Return the names of the states that were registered in this run."""
        return list(self._states.accessors)

    def accessor_at(
        self, state: str, key: Any, key_group: int, namespace: object = VOID_NAMESPACE
    ) -> StateAccessor:
        """Return another accessor of a registered state, which stays at one key and namespace.

        Raises `KeyError` where no state of that name is registered; `NullNamespaceError`.
        """
        context = KeyContext(self.current.serializer, self.key_groups, self.max_parallelism)
        context.check_own(key, key_group)
        context.key, context.key_group = key, key_group
        return self._states.accessors[state].at(context, namespace)

    # -- over all keys ------------------------------------------------------------------------------------

    def get_keys(self, state: str, namespace: object = VOID_NAMESPACE) -> Iterator[Any]:
        """Yield each key that has an entry in one namespace of a state, registered or only restored.

        An unknown state has none; the namespace None raises `NullNamespaceError`.
        """
        if namespace is None:
            raise NullNamespaceError(state)
        table = self._written_tables().get(state)
        return iter(()) if table is None else table.keys(namespace)

    def get_keys_and_namespaces(self, state: str) -> Iterator[tuple[Any, Any]]:
        """Yield each (key, namespace) of a state once; an unknown state has none."""
        table = self._written_tables().get(state)
        return iter(()) if table is None else table.keys_and_namespaces()

    def apply_to_all_keys(
        self,
        descriptor: StateDescriptor[A],
        function: Callable[[Any, A], None],
        namespace: object = VOID_NAMESPACE,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> None:
        """Call ``function(key, accessor)`` with each key of one namespace as the current key.

        The keys are listed first, so the function may change and clear state.  At the end the current key,
        and the namespace of a state that was registered before, are restored.
        """
        known = self._states.accessors.get(descriptor.name)
        namespace_before = namespace if known is None else known.namespace
        accessor = self.get_state(descriptor, namespace, namespace_serializer)
        current = self.current
        before = current.key, current.key_group
        keys, key_groups = current.locate(self.get_keys(descriptor.name, namespace))
        self._expiring.move_time()
        try:
            located = zip(keys, key_groups, strict=True)
            for done, (current.key, current.key_group) in enumerate(located, 1):
                # The function may have set another namespace.
                accessor.set_namespace(namespace)
                function(current.key, accessor)
                if not done % _KEYS_AT_ONCE:
                    self.balance_memory()
        finally:
            current.key, current.key_group = before
            accessor.set_namespace(namespace_before)

    def clear_state(self, state: str) -> None:
        """Remove all entries of a state, registered or only restored; an unknown state has none."""
        table = self._written_tables().get(state)
        if table is not None:
            entries = list(table.keys_and_namespaces())
            _, key_groups = self.current.locate(key for key, _ in entries)
            for (key, namespace), key_group in zip(entries, key_groups, strict=True):
                table.remove(key_group, key, namespace)

    def num_entries(self) -> int:
        """Return the number of entries over all states."""
        return sum(map(len, self._written_tables().values()))

    def entries_by_state(self, written: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
        """Return the number of entries of each state, expired ones included.

        A full snapshot of the present state has `written` so many: states whose expired entries it contains
        need not be counted, for which an ordered store would read all of their rows.
        """
        filtered = self._expiring.snapshot_filters()
        return {
            name: written[name] if name in written and name not in filtered else len(table)
            for name, table in self._written_tables().items()
        }

    def metas(self) -> list[StateMeta]:
        """Return the meta of each state, restored ones included."""
        return [table.meta for table in self._tables.values()]

    # -- epochs -------------------------------------------------------------------------------------------

    def snapshot(self, checkpoint_id: int) -> SnapshotTask:
        """Run the synchronous part of a snapshot and return the rest as a task.

        The task must be run or cancelled; until then it may occupy memory.  Unless
        `snapshots_asynchronously`, run it before the next change.
        """
        tables = self._written_tables()
        filters = self._expiring.snapshot_filters()
        started = time.perf_counter()
        captured = self._strategy.prepare(checkpoint_id, tables)
        synchronous_ms = (time.perf_counter() - started) * 1000.0
        task = SnapshotTask(checkpoint_id, captured, synchronous_ms, self.snapshots_asynchronously, filters)
        self._snapshots = [other for other in self._snapshots if not other.done]
        self._snapshots.append(task)
        return task

    def metrics(self) -> Mapping[str, int]:
        """Return the metrics of the backend's own engine, those of its spill manager included."""
        spilling = {} if self._spill_manager is None else self._spill_manager.metrics()
        return {**self._strategy.metrics(), **spilling}

    def native_snapshot(self, checkpoint_id: int) -> NativeSnapshot | None:
        """Capture the backend's own files, or return None where it has none to upload.

        The caller releases the snapshot.
        """
        if not isinstance(self._strategy, NativeSnapshotStrategy):
            return None
        return self._strategy.prepare_native(checkpoint_id, self._written_tables())

    def begin_epoch(self, epoch: int) -> None:
        """Track every change from now on as one of an epoch; epochs ascend.

        Raises `ValueError` where the instance was not opened to track changes, or the epoch is not above the
        one before.
        """
        self.write_back()
        self._tracked().begin_epoch(epoch)

    def changes_since(self, epoch: int) -> dict[str, TableChanges[Any, Any, Any]]:
        """Capture what changed in each state after an epoch; the caller releases each.

        Unless `snapshots_asynchronously`, read them before the next change.

        Raises `UnknownChangesError` where changes are known since a later epoch only.
        """
        self.write_back()
        return self._tracked().changes_since(epoch)

    def forget_changes(self, epoch: int) -> None:
        """Forget the changes up to and including an epoch that a checkpoint has."""
        self._tracked().forget_changes(epoch)

    def can_apply_changes(self, states: Sequence[StateMeta]) -> bool:
        """Return whether `apply_changes` may be called with another instance's changes of these states.

        It may where all exist here with the same types, and none has a time to live: clean-up knows only of
        changes that accessors made.
        """
        mine = {meta.name: meta.to_json() for meta in self.metas()}
        same = all(mine.get(meta.name) == meta.to_json() for meta in states)
        return same and not self._expiring

    def apply_changes(self, state: str, changes: Iterable[EntryChange]) -> None:
        """Write or remove entries of a state between two epochs; of one entry the last change counts.

        The next epoch's changes do not include them.
        """
        apply_changes(self._tables[state], changes)
        self.balance_memory()

    def _tracked(self) -> ChangeTracker:
        if self._tracker is None:
            raise ValueError("this keyed backend tracks no changes; open it with track_changes=True")
        return self._tracker

    def end_epoch(self) -> None:
        """Remove what expiry indexes and the backend know to be expired, and call `balance_memory`."""
        self._expiring.drop_expired(self._written_tables())
        self.balance_memory()

    @property
    def has_spilled(self) -> bool:
        """Whether entries are only on disk, because memory has no room for all."""
        return self._spill_manager is not None and any(
            group.on_disk
            for table in self._tables.values()
            if isinstance(table, SpillableTable)
            for group in table.spillable_groups()
        )

    def balance_memory(self) -> None:
        """Let the backend move entries between memory and disk.

        Called between two chunks of rows, while no accessor caches: a value that is in use must not move.
        """
        if self._spill_manager is not None:
            self._spill_manager.balance(self._tables, self._cancel_snapshots)

    def trim_memory(self, since: float) -> None:
        """Let the tables give back memory that others lack, as `StateTable.trim`."""
        for table in self._written_tables().values():
            table.trim(since)

    def _cancel_snapshots(self) -> int:
        """Cancel the running snapshots and return how many these are."""
        running = [task for task in self._snapshots if not task.done]
        for task in running:
            task.cancel()
        return len(running)

    def _written_tables(self) -> dict[str, AnyStateTable]:
        """Return all tables, which have every change."""
        self.write_back()
        return self._tables

    def close(self) -> None:
        """Cancel running snapshots and free everything; calling it again does nothing."""
        self._cancel_snapshots()
        self._context.closing.close()
