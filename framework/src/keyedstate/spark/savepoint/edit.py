"""New savepoints: from DataFrames, and from old savepoints through DataFrames.

The driver copies files that are not edited.  Spark's tasks write the others, each the key groups of one part.
The new savepoint exists when all of it is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.savepoint.canonical import write_canonical
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder, SavepointWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import frozen
from keyedstate.errors import BootstrapError, StateFrameError, UnknownOperatorError, UnknownStateError
from keyedstate.keygroups import KEY_GROUP_COLUMN, key_group_range_for
from keyedstate.operator_state import OperatorStateKind, OperatorStateMeta
from keyedstate.options import CHECKPOINT_COMPRESSION, Configuration
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.plan.configuration import read_configuration
from keyedstate.spark.routing import quoted, route, with_key_group
from keyedstate.spark.savepoint.bootstrap import (
    BOOTSTRAP,
    bootstrap_identity,
    metadata_of,
    run_bootstrap,
    written_parts,
)
from keyedstate.spark.savepoint.operator_state_writing import with_operator_states
from keyedstate.spark.savepoint.state_writing import PartRewrite
from keyedstate.spark.schema import key_types
from keyedstate.state import StateDescriptor
from keyedstate.types import VOID
from keyedstate.types.collections.ttl import TimedSerializer, plain_type

if TYPE_CHECKING:
    from keyedstate.spark.dataframe.connected import ConnectedFrame
    from keyedstate.spark.dataframe.frame import KeyedFrame
    from keyedstate.spark.task.task import OperatorPlan

S = TypeVar("S", bound=SavepointFolder)

#: The columns of a state's rows in addition to those of the key, which may not have these names.
STATE_COLUMNS = ("value", "namespace", "written_at")


@dataclass(frozen=True)
class StateRows:
    """A state whose new entries are the rows of a DataFrame."""

    rows: DataFrame
    meta: StateMeta
    ttl_ms: int | None


@dataclass
class _Operator:
    """An operator of the new savepoint: one of the old savepoint, of a function, or of states only."""

    #: In the old savepoint.
    origin: OperatorSnapshot | None = None
    #: Of the old savepoint, or of an operator without state; None with a bootstrap.
    metadata: CheckpointMetadata | None = None
    #: The function that makes the state, and its rows.
    bootstrap: tuple[OperatorPlan, DataFrame] | None = None
    states: dict[str, StateRows] = field(default_factory=dict)
    operator_states: dict[str, tuple[OperatorStateMeta, DataFrame]] = field(default_factory=dict)


class SavepointEdit(Generic[S]):
    """A builder of a savepoint; made by `Savepoint.new` and `Savepoint.edit`.

    Methods record a change and return the object; `write` carries the changes out.
    """

    def __init__(self, kind: type[S], base: S | None = None) -> None:
        self._kind = kind
        self._base = base
        self._operators: dict[str, _Operator] = {}
        if base is not None:
            for uid in base.operators:
                origin = OperatorSnapshot.open(base.root, uid)
                self._operators[uid] = _Operator(origin, origin.metadata)

    @property
    def operators(self) -> list[str]:
        """The uids that the new savepoint will have."""
        return sorted(self._operators)

    def add(self, frame: KeyedFrame | ConnectedFrame, function: KeyedFunction) -> SavepointEdit[S]:
        """Add an operator with the state that a process function has after the rows of a batch DataFrame.

        Parameters
        ----------
        frame : KeyedFrame or ConnectedFrame
            ``keyed(df, "key", uid="name")``, or two that are connected.
        function : KeyedProcessFunction, VectorizedProcessFunction or KeyedCoProcessFunction
            Its output is dropped.

        Raises
        ------
        BootstrapError
            For a streaming DataFrame, and a uid that exists already.
        MissingUidError
            Other errors are those of `KeyedFrame.process`.
        """
        bound, rows = frame._bound(function)
        uid = rows.required_uid()
        self._refuse_known(uid)
        self._operators[uid] = _Operator(bootstrap=rows.bootstrap_plan(bound))
        return self

    def add_state(self, frame: KeyedFrame, state: StateDescriptor[Any]) -> SavepointEdit[S]:
        """Add a state of an operator without running a function: the column ``value`` is the state's.

        Parameters
        ----------
        frame : KeyedFrame
            ``keyed(df, "key", uid="name")`` with the columns of the key, ``value`` and, for a state with a
            time to live, optionally ``written_at``.  The operator may exist already.
        state : StateDescriptor
            The declaration, such as ``ValueState("total", types.INT64)``.

        Raises
        ------
        BootstrapError, MissingUidError
        StateFrameError
            For columns that are missing or of other types, and a state that exists already.
        """
        keyed_rows = frame._rows
        uid, rows = keyed_rows.required_uid(), keyed_rows.df
        keyed_rows.refuse_streaming()
        parallelism = keyed_rows.parallelism(read_configuration(rows.sparkSession, keyed_rows.config))
        if uid not in self._operators:
            empty = empty_operator(uid, rows, keyed_rows.key_columns, *parallelism)
            self._operators[uid] = _Operator(metadata=empty)
        operator = self._operators[uid]
        if state.name in operator.states or (operator.origin and state.name in operator.origin.states()):
            raise StateFrameError(uid, state.name, "the operator has it already; use replace_state()")
        self._put(uid, operator, state.name, rows, state)
        return self

    def replace_state(self, uid: str, state: str | StateDescriptor[Any], rows: DataFrame) -> SavepointEdit[S]:
        """Replace a state, of keys or of the operator, by the rows of a DataFrame.

        Parameters
        ----------
        uid : str
        state : str or StateDescriptor
            The state's name, or its new declaration with another type.
        rows : DataFrame
            With the columns of the data source: those of the key, ``value``, and ``namespace`` and
            ``written_at`` if the state has them.  Other columns are ignored; keys without a row lose their
            state.  For a list of the operator ``value`` and, to keep the tasks of elements, ``task``; for a
            broadcast map ``key`` and ``value``.

        Raises
        ------
        UnknownOperatorError, UnknownStateError
        StateFrameError
            For columns that are missing or of other types; `write` finds duplicate keys.
        """
        operator = self._operator(uid)
        name = state if isinstance(state, str) else state.name
        if operator.origin is None:
            if name not in operator.states:
                raise UnknownStateError(f"the operator {uid!r}", name, list(operator.states))
        elif isinstance(state, str) and name in (of_operator := operator.origin.operator_states()):
            meta = of_operator[name]
            wanted = {"value": spark_type_of(meta.value_serializer.arrow_type).simpleString()}
            if meta.kind is OperatorStateKind.BROADCAST:
                wanted["key"] = spark_type_of(meta.key_serializer.arrow_type).simpleString()
            _require(uid, name, rows, wanted)
            chosen = [column for column in ("task", "key", "value") if column in (*wanted, *rows.columns)]
            operator.operator_states[name] = meta, rows.select(*chosen)
            return self
        else:
            operator.origin.state(name)
        self._put(uid, operator, name, rows, None if isinstance(state, str) else state)
        return self

    def remove(self, uid: str) -> SavepointEdit[S]:
        """Leave an operator out; raises `UnknownOperatorError`."""
        self._operator(uid)
        del self._operators[uid]
        return self

    def rename(self, uid: str, new: str) -> SavepointEdit[S]:
        """Give an operator another uid.

        Raises
        ------
        UnknownOperatorError
        BootstrapError
            If the new uid exists already; to swap two, rename one out of the way first.
        """
        operator = self._operator(uid)
        if new != uid:
            self._refuse_known(new)
            self._operators[new] = operator
            del self._operators[uid]
        return self

    def write(self, path: str | os.PathLike[str]) -> S:
        """Write the new savepoint.

        Parameters
        ----------
        path : str or path
            A new folder.

        Returns
        -------
        Savepoint
            With the source offsets of the old one.

        Raises
        ------
        BootstrapError
            For a savepoint without operators.
        TargetExistsError
            If the folder is not empty.
        StateFrameError
            For a duplicate key, inside the error of Spark's job.
        CheckpointError
        """
        if not self._operators:
            raise BootstrapError(None, "it would have no operator; add one with add()")
        base = self._base
        with SavepointWriter(CheckpointStorage.open(path, _configuration())) as writer:
            for uid, operator in self._operators.items():
                writer.add_operator(_written(uid, operator, writer))
            if base is None:
                writer.finish()
            else:
                for name in base.spark_files():
                    writer.add_spark_file(name, base.read_spark_file(name))
                writer.finish(spark=base.spark, drained=base.drained, watermark=base.watermark)
        return self._kind.open(writer.root)

    def _put(
        self, uid: str, operator: _Operator, name: str, rows: DataFrame, declared: StateDescriptor[Any] | None
    ) -> None:
        metadata = operator.metadata
        if metadata is None:
            raise StateFrameError(
                uid, name, "a function makes the operator's state; write its savepoint and edit that"
            )
        ttl_ms = None
        if declared is None:
            assert operator.origin is not None, "a state by its name alone is one of the old savepoint"
            meta = operator.origin.state(name)
            ttl_ms = next((part.ttl_ms[name] for part in metadata.parts if name in part.ttl_ms), None)
        else:
            key_columns = dict(metadata.key_columns)
            _require(uid, name, rows, key_columns)
            key = key_serializer_for(key_types(rows, list(key_columns)))
            # From its snapshot, which needs no class of the program in tasks: dataclasses become rows.
            value = declared.serializer.snapshot().restore_serializer()
            meta = StateMeta(name, declared.kind, key, VOID, value)
            ttl_ms = None if declared.ttl is None else declared.ttl.ms
        check_columns(uid, meta, metadata, rows)
        operator.states[name] = StateRows(rows, meta, ttl_ms)

    def _operator(self, uid: str) -> _Operator:
        if uid not in self._operators:
            where = "the new savepoint" if self._base is None else self._base.location
            raise UnknownOperatorError(where, uid, self.operators)
        return self._operators[uid]

    def _refuse_known(self, uid: str) -> None:
        if uid in self._operators:
            raise BootstrapError(uid, "there is an operator of that uid already; remove or rename it first")


def empty_operator(
    uid: str, rows: DataFrame, key_columns: list[str], parallelism: int, max_parallelism: int
) -> CheckpointMetadata:
    """Return the metadata of an operator without any state."""
    columns = tuple((name, rows.schema[name].dataType.simpleString()) for name in key_columns)
    parts = [
        AttemptManifest(
            identity=bootstrap_identity(uid, number, parallelism, max_parallelism),
            key_groups=key_group_range_for(number, parallelism, max_parallelism),
            backend=BOOTSTRAP,
            backend_version="1",
            states=(),
            segments=(),
            entries={},
            rows_in=0,
            rows_out=0,
            largest_event_time=None,
            sync_ms=0.0,
            write_ms=0.0,
            restore_ms=0.0,
            process_ms=0.0,
            bytes=0,
            key_columns=columns,
        )
        for number in range(parallelism)
    ]
    return CheckpointMetadata.of(parts)


def check_columns(uid: str, meta: StateMeta, metadata: CheckpointMetadata, rows: DataFrame) -> None:
    """Refuse rows that lack a column of the state or have it with another type."""
    wanted = dict(metadata.key_columns)
    clashing = {*STATE_COLUMNS, KEY_GROUP_COLUMN} & {name.lower() for name in wanted}
    if clashing:
        reason = f"its key has the column {sorted(clashing)[0]!r}, which means something else here"
        raise StateFrameError(uid, meta.name, reason)
    wanted["value"] = spark_type_of(plain_type(meta.value_serializer).arrow_type).simpleString()
    if meta.namespace_serializer != VOID:
        wanted["namespace"] = spark_type_of(meta.namespace_serializer.arrow_type).simpleString()
    _require(uid, meta.name, rows, wanted)


def _require(uid: str, state: str, rows: DataFrame, wanted: Mapping[str, str]) -> None:
    for name, kind in wanted.items():
        found = [one for one in rows.schema.fields if one.name == name]
        if len(found) != 1:
            has = f"it has the columns {', '.join(rows.columns)}"
            raise StateFrameError(uid, state, f"it has {len(found)} columns {name!r}, and needs one; {has}")
        given = found[0].dataType.simpleString()
        if given != kind:
            reason = f"the column {name!r} has the type {given}, and the state has {kind}"
            way_out = f"cast it, or give the state's new declaration in place of {state!r}"
            raise StateFrameError(uid, state, f"{reason}; {way_out}")


def _written(uid: str, operator: _Operator, writer: SavepointWriter) -> CheckpointMetadata:
    """Write the data of one operator into the savepoint; return its metadata there."""
    target = writer.storage(uid)
    if operator.bootstrap is not None:
        plan, rows = operator.bootstrap
        return run_bootstrap(plan, rows, writer.root, uid)
    assert operator.metadata is not None, "without a bootstrap"
    metadata = operator.metadata
    source = target if operator.origin is None else operator.origin.storage
    if not operator.states:
        whole = write_canonical(metadata, source, target)
        parts = tuple(replace(part, identity=replace(part.identity, uid=uid)) for part in whole.parts)
        metadata = replace(whole, uid=uid, parts=parts)
    for state in operator.states.values():
        metadata = with_state(uid, metadata, source, target, state)
        # The next state changes what this one has written.
        source = target
    if operator.operator_states:
        compression = _configuration()[CHECKPOINT_COMPRESSION]
        metadata = with_operator_states(metadata, target, operator.operator_states, compression)
        metadata = metadata_of(metadata.parts, target)
    return metadata


def with_state(
    uid: str,
    metadata: CheckpointMetadata,
    source: CheckpointStorage,
    target: CheckpointStorage,
    state: StateRows,
) -> CheckpointMetadata:
    """Write the parts of an operator again, with one state from rows; return the new metadata."""
    rows, meta = state.rows, state.meta
    key_columns = [name for name, _ in metadata.key_columns]
    settings = frozen(_configuration())
    rewrite = PartRewrite(metadata, source.uri, target.uri, uid, meta, state.ttl_ms, settings)
    own = ["value"]
    if meta.namespace_serializer != VOID:
        own.append("namespace")
    if isinstance(meta.value_serializer, TimedSerializer) and "written_at" in rows.columns:
        own.append("written_at")
    chosen = rows.select(*(quoted(name) for name in (*key_columns, *own)))
    parallelism, max_parallelism = metadata.parallelism, metadata.max_parallelism
    routed = route(with_key_group(chosen, key_columns, max_parallelism), parallelism, max_parallelism)
    return metadata_of(written_parts(routed, rewrite.run, parallelism, rewrite.write), target)


def _configuration() -> Configuration:
    """Return the options of the active session, or of the environment."""
    session = SparkSession.getActiveSession()
    return Configuration(environ=os.environ) if session is None else read_configuration(session, None)
