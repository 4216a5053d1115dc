"""Several inputs of one operator: ``connect(keyed(a, "k"), keyed(b, "k2"), uid="joined").process(...)``."""

from __future__ import annotations

from collections.abc import Mapping

from keyedstate.columns.connected import ConnectedColumns
from keyedstate.columns.declared import output_schema
from keyedstate.errors import ConnectedFramesError, EventTimeError
from keyedstate.joins import JoinFunction
from keyedstate.joins.columns import joined_schema
from keyedstate.joins.inputs import JoinableInputs
from keyedstate.local.run.plan import OperatorInputs, OperatorPlan
from keyedstate.local.streams.keyed import KeyedStream
from keyedstate.local.streams.result import ResultStream
from keyedstate.runtime import KeyedCoProcessFunction
from keyedstate.runtime.functions.connected_inputs import ordinal


def connect(
    first: KeyedStream,
    second: KeyedStream,
    *further: KeyedStream,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
) -> ConnectedStreams:
    """Connect keyed inputs, so that one function sees the rows of all with one state of each key.

    Parameters
    ----------
    first, second, *further : KeyedStream
        ``keyed(rows, "key")`` without a uid, options or a broadcast input.  All have an event time, or
        none; the operator's watermark is their minimum.  The names of the key columns may differ, not their
        types.
    uid, config
        As in `keyed`.

    Raises
    ------
    ConnectedFramesError
        For other values than keyed inputs that match.
    EventTimeError
        If only some of them have an event time.
    """
    streams = (first, second, *further)
    for place, stream in enumerate(streams):
        number = ordinal(place)
        if not isinstance(stream, KeyedStream):
            raise ConnectedFramesError(
                f"the {number} one is {type(stream).__name__} and no keyed rows; give keyed(rows, 'key')"
            )
        given = {"a uid": stream._read.uid, "options": stream._read.config}
        for what, value in given.items():
            if value is not None:
                raise ConnectedFramesError(f"the {number} one has {what} of its own; give it to connect()")
        if stream._read.broadcast is not None:
            raise ConnectedFramesError(f"the {number} one has a broadcast input of its own; leave it out")
    inputs = tuple(each for stream in streams for each in stream._read.inputs)
    ConnectedColumns(*(each.columns for each in inputs))
    lacking = [place for place, each in enumerate(inputs) if each.columns.event_time is None]
    if lacking and len(lacking) < len(inputs):
        raise EventTimeError(
            None,
            f"the {ordinal(lacking[0])} of the connected inputs has none, and would hold back the watermark "
            "forever; give each an event_time=, or none",
        )
    return ConnectedStreams(OperatorInputs(inputs, uid, config))


class ConnectedStreams(JoinableInputs[ResultStream]):
    """Keyed inputs that are connected; made by `connect`."""

    def __init__(self, read: OperatorInputs) -> None:
        self._read = read

    def process(self, function: KeyedCoProcessFunction, schema: object) -> ResultStream:
        """Run a function of as many inputs over the rows of each key.

        Parameters
        ----------
        function : KeyedCoProcessFunction
        schema : str, mapping, pyarrow.Schema or StructType
            Columns of the rows that the function yields.

        Raises
        ------
        InvalidFunctionError
            For a function of another number of inputs; other errors as `KeyedStream.process`.
        """
        return ResultStream(OperatorPlan.of(self._read, function, schema))

    @property
    def _keeps_state(self) -> bool:
        return self._read.uid is not None

    @property
    def _count(self) -> int:
        return len(self._read.inputs)

    @property
    def _row_kinds(self) -> list[str | None]:
        return [each.columns.row_kind for each in self._read.inputs]

    def _run_join(self, function: JoinFunction, declared: object) -> ResultStream:
        sides = [each.columns for each in self._read.inputs]
        made = function.output_columns(ConnectedColumns(*sides).inputs, lambda name: name)
        if made is None:
            return self.process(function, output_schema(declared).schema)
        return self.process(function, joined_schema([each.schema for each in sides], made))
