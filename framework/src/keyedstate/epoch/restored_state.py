"""The state of a partition at the start of an epoch: restored from files, or by deltas to newer state."""

from __future__ import annotations

import contextlib

from keyedstate.checkpoint import (
    AttemptManifest,
    ChainHandle,
    SegmentFile,
    SegmentHandle,
    StoredNativeHandle,
    handles_for,
    read_operator_state,
)
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.key_columns import naming_key_columns
from keyedstate.epoch.partition_plan import PartitionPlan
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
    key_groups = plan.key_groups(start.identity.partition)
    with contextlib.ExitStack() as handles_in_use:
        handles: list[SegmentHandle | ChainHandle | StoredNativeHandle] = []
        if start.stored is not None:
            handles = handles_for(start.stored.metadata, start.stored.storage, key_groups)
        for handle in handles:
            handles_in_use.callback(handle.close)
        before = None if start.stored is None else start.stored.metadata
        with naming_key_columns(start.identity.uid, plan.key_columns, before):
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
