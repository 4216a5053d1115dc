"""The watermark of an operator, from metadata of earlier epochs: the same in all tasks and repetitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.restore import SavepointRestore
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.errors import EventTimeError
from keyedstate.runtime.functions.connected_inputs import input_names
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import EventTime, InputTime, bounded_out_of_orderness, watermark_of_inputs

#: The event time of one input, or of each connected input; empty without event time.
EventTimes = tuple[EventTime, ...]
#: The watermarks of the operators that inputs follow, by the number of the input; None is an unknown one.
FollowedWatermarks = Mapping[int, int | None]

_NOT_FOLLOWING: FollowedWatermarks = MappingProxyType({})


@dataclass(frozen=True)
class FollowedOperator:
    """An operator whose watermark another one of the same query follows: the rows are its output."""

    uid: str
    #: URI of the folder with the folders of all operators.
    directory: str
    #: Its own, as `keyedstate.epoch.configuration.frozen` gives them.
    settings: tuple[tuple[str, Any], ...]
    max_parallelism: int
    event_times: EventTimes
    #: Those that it follows itself.
    followed: FollowedOperators

    def watermark(self, identity: TaskIdentity) -> int | None:
        """Return the watermark that it has after the epoch of a task that follows it; None is unknown.

        To be called when its tasks have begun that epoch: the checkpoint before is published then.  Raises
        `EventTimeError` where it does not run in the query of the task.
        """
        followed = followed_watermarks(self.followed, identity)
        return watermark_of_epoch(self.event_times, self._stored(identity), followed)

    def _stored(self, identity: TaskIdentity) -> CheckpointMetadata | None:
        """Return the metadata that its epoch begins from."""
        folder = OperatorFolder(storage_in_task(self.directory, self.settings), self.uid)
        newest = folder.newest_before(identity.epoch)
        owner = None if newest is not None else folder.read_owner()
        found = newest or owner
        if found is None or found.query_id != identity.query_id:
            raise EventTimeError(
                None,
                f"it follows the operator {self.uid!r}, which does not run before {identity.uid!r} in the "
                "same query; name the operator whose output the rows are, or leave follows= out",
            )
        if owner is None:
            return newest
        own = replace(identity, uid=self.uid, max_parallelism=self.max_parallelism)
        restore = SavepointRestore.of(configuration_in_task(self.settings))
        stored = restore.find_snapshot(folder, owner, own, None)
        return None if stored is None else stored.metadata


#: What each input follows, None for one with a watermark of its own; empty where none follows any.
FollowedOperators = tuple[FollowedOperator | None, ...]


def followed_watermarks(followed: FollowedOperators, identity: TaskIdentity) -> FollowedWatermarks:
    """Return the watermarks that operators have after the epoch of a task that follows them.

    Raises `EventTimeError` as `FollowedOperator.watermark`.
    """
    return {
        number: operator.watermark(identity)
        for number, operator in enumerate(followed)
        if operator is not None
    }


def watermark_of_epoch(
    event_times: EventTimes,
    metadata: CheckpointMetadata | None,
    followed: FollowedWatermarks = _NOT_FOLLOWING,
) -> int | None:
    """Return the watermark of an epoch that begins from a checkpoint, or without one; None is unknown.

    An operator that follows others has it after the rows of the epoch, else before them.
    """
    # A run without event time keeps it, so that it does not go back in a later run.
    before = None if metadata is None else metadata.watermark
    if not event_times or (metadata is None and not followed):
        return before
    if metadata is not None and metadata.positions is not None:
        # It moved with the rows: several channels hold it back, which the largest event time hides.
        return before
    known = BEFORE_TIME if before is None else before
    mark = watermark_after(event_times, metadata, known, followed)
    return None if before is None and mark == BEFORE_TIME else mark


def watermark_after(
    event_times: EventTimes,
    metadata: CheckpointMetadata | None,
    before: int,
    followed: FollowedWatermarks = _NOT_FOLLOWING,
) -> int:
    """Return the watermark after the rows of a checkpoint, at least the earlier watermark `before`."""
    now = 0 if metadata is None else metadata.processing_time or 0
    # A bootstrapped savepoint may lack a connected input, which the watermark waits for like any other.
    known = inputs_at_start(event_times, now)
    if metadata is not None:
        known |= metadata.inputs
    if len(event_times) > 1 or followed:
        names = input_names(len(event_times))
        by_input = dict(zip(names, event_times, strict=True))
        for number, mark in followed.items():
            known[names[number]] = BEFORE_TIME if mark is None else mark + 1, now
    else:
        (only,) = event_times
        assert metadata is not None, "without one there is no watermark of the rows"
        if only.inputs is None or not known:
            return max(before, bounded_out_of_orderness(metadata.largest_event_time, only.delay_ms or 0))
        by_input = dict.fromkeys(known, only)
    return watermark_of_inputs(
        {name: InputTime(*known[name]) for name in by_input},
        {name: each.delay_ms or 0 for name, each in by_input.items()},
        {name: each.idle_ms for name, each in by_input.items()},
        now,
        before,
    )


def inputs_at_start(event_times: EventTimes, now: int) -> dict[str, tuple[int, int]]:
    """Return the event time and the time of the last row of connected inputs without rows."""
    count = len(event_times)
    return dict.fromkeys(input_names(count), (BEFORE_TIME, now)) if count > 1 else {}
