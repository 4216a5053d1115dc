"""The inputs of an operator in a run: the channels of its sources, their positions, and its event time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.savepoint.file_positions import files_read_on_spark
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.columns.keyed import with_key_groups
from keyedstate.columns.spark_types import batch_as_spark_reads, schema_as_spark_reads
from keyedstate.errors import SourceError
from keyedstate.local.channels.elements import Watermark, WatermarkStatus
from keyedstate.local.channels.watermark_alignment import WatermarkAlignment
from keyedstate.local.run.event_time import OperatorTime
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.sources.files import FileSource
from keyedstate.local.sources.source import Source, SourceChannel
from keyedstate.options import RESTORE_SAVEPOINT, WATERMARK_MAX_DRIFT
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, Clock

#: The name, in positions, of the channels whose rows another operator yields.
_UPSTREAM = "upstream"


def upstream_channel(subtask: int) -> str:
    """Return the name of the channel whose rows a subtask of another operator yields."""
    return f"{_UPSTREAM} {subtask}"


class InputChannels:
    """The channels of an operator's inputs; `restore` comes before anything else.

    Raises `SourceError` where two channels of a source have one name.
    """

    def __init__(self, plan: OperatorPlan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        #: The event times of all channels, and their watermark.
        self.time = OperatorTime((), None, 0)
        self._channels: list[tuple[int, SourceChannel]] = []
        #: The number of the input and the name of each channel from a subtask of another operator.
        self.upstream: list[tuple[int, str]] = []
        for number, input_ in enumerate(plan.read.inputs):
            if isinstance(input_.rows, Source):
                channels = input_.rows.channels()
                _check_channels([channel.name for channel in channels])
                self._channels += [(number, channel) for channel in channels]
            else:
                subtasks = range(input_.rows.plan.partitions.parallelism)
                self.upstream += [(number, upstream_channel(subtask)) for subtask in subtasks]
        #: The channels of sources that have not ended, each with the number of the input.
        self.reading = list(self._channels)
        self._ended_upstream: set[tuple[int, str]] = set()
        self._restored: Mapping[str, Any] = {}
        self._alignment: WatermarkAlignment | None = None
        drift_ms = plan.config[WATERMARK_MAX_DRIFT]
        if drift_ms and plan.partitions.event_times:
            # All channels are in this process, so that every look at them is an update.
            self._alignment = WatermarkAlignment(len(self._channels), drift_ms, clock(), update_interval_ms=0)

    def restore(self, checkpoint: CheckpointMetadata | None, watermark: int | None) -> None:
        """Move the channels to their positions in a checkpoint, whose watermark continues."""
        positions = self._restored = {} if checkpoint is None else self._positions_in(checkpoint)
        self.time = OperatorTime(self._plan.partitions.event_times, watermark, self._clock())
        for number, name in self.upstream:
            position = positions.get(str(number + 1), {}).get(_UPSTREAM)
            self.time.add_channel(number, name, _times(position))
        for number, channel in self._channels:
            position = positions.get(str(number + 1), {}).get(channel.name)
            if position is not None:
                channel.seek(position["offset"])
            self.time.add_channel(number, channel.name, _times(position))

    def _positions_in(self, checkpoint: CheckpointMetadata) -> Mapping[str, Any]:
        """Return positions as `AttemptManifest.positions` has them; those of Spark are in its savepoint."""
        if checkpoint.positions is not None:
            self._check_files(checkpoint.positions)
            return checkpoint.positions
        location = self._plan.config.get(RESTORE_SAVEPOINT)
        if location is None:
            # The first epoch runs again, and the option was removed since.
            owner = None if self._plan.folder is None else self._plan.folder.read_owner()
            if owner is None or owner.savepoint is None:
                return {}
            location = owner.savepoint.location
        savepoint = SavepointFolder.open(CheckpointStorage.open(location, self._plan.config))
        read = files_read_on_spark(savepoint)
        found: dict[str, Any] = {}
        for number, channel in self._channels:
            name, source = str(number + 1), self._plan.read.inputs[number].rows
            if isinstance(source, FileSource) and name in read:
                position = {"offset": to_json(read[name]), "event_times": {}}
                found.setdefault(name, {})[channel.name] = position
        return found

    def _check_files(self, positions: Mapping[str, Any]) -> None:
        """Refuse files in another number of channels: a file would change its channel, and be read again."""
        for number, input_ in enumerate(self._plan.read.inputs):
            before = positions.get(str(number + 1))
            now = {channel.name for of_input, channel in self._channels if of_input == number}
            if before is not None and isinstance(input_.rows, FileSource) and before.keys() != now:
                raise SourceError(
                    "the files of the dataset",
                    f"they had {len(before)} channel(s) in the last checkpoint and have {len(now)} now",
                    f"Give FileSource(dataset, channels={len(before)}).",
                )

    def readable(self) -> list[tuple[int, SourceChannel]]:
        """Return the channels to read now: those that have not ended and are not too far ahead of others."""
        if self._alignment is None:
            return list(self.reading)
        now = self._clock()
        for place, (number, channel) in enumerate(self._channels):
            watermark = self.time.of_channel(number, channel.name)
            if (number, channel) not in self.reading:
                watermark = END_OF_TIME
            status = WatermarkStatus.IDLE if watermark is None else WatermarkStatus.ACTIVE
            self._alignment.receive(place, status)
            if watermark is not None:
                self._alignment.receive(place, Watermark(watermark))
        self._alignment.advance(now)
        paused = [self._channels[place] for place in self._alignment.paused]
        for number, channel in paused:
            self.time.paused(number, channel.name)
        return [each for each in self.reading if each not in paused]

    def keyed(
        self, number: int, channel: str, batch: pa.RecordBatch, *, more_follow: bool = False
    ) -> pa.RecordBatch:
        """Return rows of an input as the operator processes them, with key groups; note their event times.

        Rows with which another operator answers one batch are in order of their keys. Where `more_follow`,
        the watermark does not move before the last ones of them.
        """
        columns = self._plan.read.inputs[number].columns
        _check_columns(batch.schema, columns.given_schema, channel)
        rows = columns.with_key_columns(batch_as_spark_reads(batch, columns.given_schema))
        self.time.saw(number, channel, rows, more_follow=more_follow)
        if self._plan.connected is not None:
            rows = self._plan.connected.union(number, rows)
        partitions = self._plan.partitions
        return with_key_groups(rows, [name for name, _ in partitions.key_columns], partitions.max_parallelism)

    def end(self, number: int, channel: str) -> None:
        """Note that a channel has no more rows."""
        if (number, channel) in self.upstream:
            self._ended_upstream.add((number, channel))
        self.reading = [each for each in self.reading if (each[0], each[1].name) != (number, channel)]
        self.time.end_channel(number, channel)

    @property
    def has_ended(self) -> bool:
        """Whether all channels have ended."""
        return not self.reading and self._ended_upstream == set(self.upstream)

    def count_turn(self) -> None:
        """Count the time of a turn of the run, in which its channels are read once, as without rows."""
        self.time.count_turn(self._clock())

    def positions(self) -> dict[str, Any]:
        """Return the positions as `AttemptManifest.positions` has them."""
        # A channel that is absent in this run keeps its position: a later run may have it again.
        found: dict[str, dict[str, Any]] = {name: {**channels} for name, channels in self._restored.items()}
        for number, channel in self._channels:
            times = self.time.times_of(number, channel.name)
            of_input = found.setdefault(str(number + 1), {})
            of_input[channel.name] = {"offset": _offset_of(channel), "event_times": times}
        return self.with_upstream_positions(found)

    def with_upstream_positions(self, positions: Mapping[str, Any]) -> dict[str, Any]:
        """Return positions with the present event times of the rows of other operators.

        A later run may have another number of their subtasks, so it is the least of them.
        """
        least: dict[str, dict[str, int]] = {}
        for number, name in self.upstream:
            times = least.setdefault(str(number + 1), {})
            for input_, time in self.time.times_of(number, name).items():
                times[input_] = min(time, times.get(input_, time))
        upstream = {
            name: {_UPSTREAM: {"offset": None, "event_times": times}} for name, times in least.items()
        }
        return {**positions, **{name: {**positions.get(name, {}), **upstream[name]} for name in upstream}}


def _check_channels(names: Sequence[str]) -> None:
    """Refuse a source without channels, and channels of one name, which would have one position."""
    if not names:
        way_out = "Return at least one, whose read() returns None where there are no rows."
        raise SourceError("an object", "its channels() are none", way_out)
    for name, count in Counter(names).items():
        if count > 1:
            raise SourceError(
                f"the channel {name!r}",
                f"{count} channels of its source have this name",
                "Give each channel a name of its own, the same in each run.",
            )


def _offset_of(channel: SourceChannel) -> Any:
    """Return the offset of a channel; refuses one that a restart would get in another form."""
    offset = channel.offset()
    try:
        stored = json.loads(json.dumps(offset, allow_nan=False))
    except (TypeError, ValueError) as error:
        stored, reason = None, str(error)
    else:
        reason = f"seek() would get {stored!r} after a restart"
    if stored != offset:
        raise SourceError(
            f"the channel {channel.name!r}",
            f"JSON cannot hold its offset {offset!r}: {reason}",
            "Return numbers, strings, lists, or dicts with strings as keys.",
        )
    return offset


def _check_columns(found: pa.Schema, declared: pa.Schema, channel: str) -> None:
    """Refuse a batch with other columns than its source declares: another column would be the key."""
    if found.names != declared.names or schema_as_spark_reads(found).types != declared.types:
        raise SourceError(
            f"a batch of the channel {channel!r}",
            f"its columns are ({_columns(found)}), and those of the source are ({_columns(declared)})",
            "Give each batch the columns of the source's schema, in their order.",
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _times(position: Any) -> dict[str, int]:
    """Return the event times of a stored position that are known."""
    if position is None:
        return {}
    return {name: time for name, time in position["event_times"].items() if time != BEFORE_TIME}
