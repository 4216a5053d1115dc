"""The state of a partition at the start of an epoch: restored from files, or by deltas to newer state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.recovery import opened_handles
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.errors import KeyColumnsChangedError, StateMigrationError
from keyedstate.state.clock import Clock
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


def deltas_since(written: AttemptManifest, part: AttemptManifest) -> tuple[SegmentFile, ...] | None:
    """Return the deltas by which a later state differs from an earlier one; None if that is unknown."""
    if not written.deltas:
        same = (written.segments, written.native) == (part.segments, part.native)
        return part.deltas if same else None
    # Whatever its full snapshot is now: the state after a delta is the same.
    last = written.deltas[-1]
    return part.deltas[part.deltas.index(last) + 1 :] if last in part.deltas else None


def restore_keyed_state(
    plan: PartitionPlan, start: EpochStart, clock: Clock, *, track_changes: bool
) -> KeyedStateBackend:
    """Return the keyed state of a partition, restored from the files of the epoch's start."""
    key_groups, stored = plan.key_groups(start.identity.partition), start.stored
    if stored is None:
        return plan.open_backend(key_groups, track_changes=track_changes, clock=clock)
    with (
        opened_handles(stored.metadata, stored.storage, key_groups) as handles,
        _naming_key_columns(start.identity.uid, plan.key_columns, stored.metadata),
    ):
        return plan.open_backend(key_groups, handles, track_changes=track_changes, clock=clock)


def restore_operator_state(plan: PartitionPlan, start: EpochStart) -> OperatorStateBackend:
    """Return the operator state of a partition at the epoch's start."""
    stored, identity = start.stored, start.identity
    if stored is None:
        return plan.operator_states()
    restored = read_operator_state(
        stored.storage,
        [part.operator_state for part in stored.metadata.parts],
        identity.partition,
        plan.parallelism,
        restarted=stored.metadata.run_id != identity.run_id,
    )
    return plan.operator_states(restored)


@contextlib.contextmanager
def _naming_key_columns(
    uid: str, key_columns: Sequence[tuple[str, str]], restore_point: CheckpointMetadata
) -> Iterator[None]:
    """Raise `KeyColumnsChangedError`, which names the columns, where a state refuses the type of the key."""
    try:
        yield
    except StateMigrationError as error:
        if error.part != "key":
            raise
        before, now = (
            [f"{name!r} of type {kind}" for name, kind in columns]
            for columns in (restore_point.key_columns, key_columns)
        )
        raise KeyColumnsChangedError(uid, before, now) from error
