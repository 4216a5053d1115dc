"""Spark's ``StatefulProcessorHandle`` over the states and timers of keyedstate.

On the driver `init` runs once, with a handle that only notes which states exist: it parses their schemas,
which needs the JVM, and refuses what Spark refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from pyspark.errors import IllegalArgumentException, PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from keyedstate.errors import StateKindMismatchError, StateMigrationError
from keyedstate.runtime.group_timers import GroupTimers
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.drop_in.state_values import StructValues
from keyedstate.spark.drop_in.states import KeyedListState, KeyedMapState, KeyedValueState
from keyedstate.state import ListState as ListDescriptor
from keyedstate.state import MapState as MapDescriptor
from keyedstate.state import Ttl
from keyedstate.state import ValueState as ValueDescriptor

#: How Spark names the time modes in its errors.
_MODES = {None: "NoTime", TimeDomain.PROCESSING_TIME: "ProcessingTime", TimeDomain.EVENT_TIME: "EventTime"}
#: The state of a handle while `init` runs, and after it.
CREATED, INITIALIZED = "CREATED", "INITIALIZED"

Schemas = dict[str, StructType]


class StateStore(Protocol):
    """What a handle of a task finds states in."""

    def state(self, descriptor: Any) -> Any:
        """Register a state and return its accessor."""

    def clear_state(self, name: str) -> None:
        """Remove all entries of a state."""


class KeyedHandle(StatefulProcessorHandle):
    """The handle of one task, or, without a store, that of the driver.

    Parameters
    ----------
    schemas : mapping of str to StructType
        Those that were given as text, which only the driver can parse.
    parse : callable, optional
        Parses one, and adds it; on the driver.
    """

    def __init__(
        self,
        time_domain: TimeDomain | None,
        schemas: Schemas,
        *,
        store: StateStore | None = None,
        timers: GroupTimers | None = None,
        parse: Callable[[str], StructType] | None = None,
    ) -> None:
        self._time_domain = time_domain
        self._schemas = schemas
        self._store = store
        self._timers = timers
        self._parse = parse
        self._names: set[str] = set()
        self.phase = CREATED

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        failure = "Error initializing value state"
        self._check_new(stateName, "get_value_state", failure)
        values = StructValues(self._schema(schema, failure))
        ttl = self._ttl(stateName, ttlDurationMs, failure)
        descriptor = ValueDescriptor(stateName, values.value_type, ttl=ttl)
        return KeyedValueState(self._registered(descriptor), values)

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        failure = "Error initializing list state"
        self._check_new(stateName, "get_list_state", failure)
        values = StructValues(self._schema(schema, failure))
        ttl = self._ttl(stateName, ttlDurationMs, failure)
        descriptor = ListDescriptor(stateName, values.value_type, ttl=ttl)
        return KeyedListState(self._registered(descriptor), values)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        failure = "Error initializing map state"
        self._check_new(stateName, "get_map_state", failure)
        map_keys = StructValues(self._schema(userKeySchema, failure))
        values = StructValues(self._schema(valueSchema, failure))
        ttl = self._ttl(stateName, ttlDurationMs, failure)
        descriptor = MapDescriptor(stateName, map_keys.key_type, values.value_type, ttl=ttl)
        return KeyedMapState(self._registered(descriptor), map_keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._usable_timers("register_timer", "Error register timer").register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._usable_timers("delete_timer", "Error deleting timer").delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self._usable_timers("list_timers", "Error listing timers").times())

    def deleteIfExists(self, stateName: str) -> None:
        self._check_phase("delete_if_exists", "Error deleting state", CREATED)
        self._names.discard(stateName)
        if self._store is not None:
            self._store.clear_state(stateName)

    def _registered(self, descriptor: Any) -> Any:
        if self._store is None:
            return None
        try:
            return self._store.state(descriptor)
        except StateKindMismatchError as error:
            condition = "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
            raise PySparkRuntimeError(f"[{condition}] {error} SQLSTATE: 42802") from error
        except StateMigrationError as error:
            of_key = error.part == "map key"
            condition = (
                f"STATE_STORE_{'KEY_SCHEMA_NOT_COMPATIBLE' if of_key else 'INVALID_VALUE_SCHEMA_EVOLUTION'}"
            )
            raise PySparkRuntimeError(f"[{condition}] {error} SQLSTATE: XXKST") from error

    def _schema(self, schema: StructType | str, failure: str) -> StructType:
        if isinstance(schema, StructType):
            return schema
        if schema not in self._schemas:
            if self._parse is None:
                raise PySparkRuntimeError(
                    f"{failure}: the schema {schema!r} was not given when init() ran on the driver, where "
                    "schemas are parsed; give the same states each time, or a StructType."
                )
            self._schemas[schema] = self._parse(schema)
        return self._schemas[schema]

    def _check_new(self, name: str, operation: str, failure: str) -> None:
        self._check_phase(operation, failure, CREATED)
        if name in self._names:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor. SQLSTATE: 42802"
            )
        self._names.add(name)

    def _check_phase(self, operation: str, failure: str, needed: str) -> None:
        if self.phase != needed:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed "
                f"to perform stateful processor operation={operation} with invalid handle "
                f"state={self.phase}. SQLSTATE: 42802"
            )

    def _ttl(self, name: str, ttl_ms: int | None, failure: str) -> Ttl | None:
        if not ttl_ms:
            return None
        if self._time_domain is not TimeDomain.PROCESSING_TIME:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
                f"state={name} in timeMode={_MODES[self._time_domain]}, use TimeMode.ProcessingTime() "
                "instead. SQLSTATE: 42802"
            )
        if ttl_ms < 0:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater "
                f"than zero for State store operation=get_state on state={name}. SQLSTATE: 42802"
            )
        return Ttl(int(ttl_ms))

    def _usable_timers(self, operation: str, failure: str) -> GroupTimers:
        if self._time_domain is None:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to "
                f"perform stateful processor operation={operation} with invalid timeMode=NoTime SQLSTATE: "
                "42802"
            )
        self._check_phase(operation, failure, INITIALIZED)
        assert self._timers is not None, "a task has timers where there is a time"
        return self._timers


def time_domain_of(time_mode: str) -> TimeDomain | None:
    """Return the time domain of one of Spark's time modes; raises IllegalArgumentException."""
    found = {name.lower(): domain for domain, name in _MODES.items()} | {"none": None}
    if time_mode.lower() not in found:
        raise IllegalArgumentException(
            f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {time_mode}. Accepted timeMode modes "
            "are 'none', 'processingTime', 'eventTime' SQLSTATE: 42802"
        )
    return found[time_mode.lower()]


def declared_schemas(
    init: Callable[[StatefulProcessorHandle], None],
    time_domain: TimeDomain | None,
    parse: Callable[[str], StructType],
) -> Mapping[str, StructType]:
    """Run `init` on the driver, and return the schemas that it gives as text."""
    schemas: Schemas = {}
    init(KeyedHandle(time_domain, schemas, parse=parse))
    return schemas
