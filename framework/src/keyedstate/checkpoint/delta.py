"""Delta files: what one epoch changed, and how a chain of them over a base is read.

A delta is a segment file, so its bytes are checked like those and any Arrow tool reads it.  Each state is one
stream, whatever key groups its changes are of: an epoch that changes a little would otherwise cost a stream
per key group.  The value of an entry is a struct of the key group, whether there is an entry (false: it was
removed), and the entry's value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from keyedstate.backend import EntryBatch, StateHandle, StateMeta, TableChanges
from keyedstate.checkpoint.errors import CorruptSegmentError
from keyedstate.checkpoint.segment import SegmentHandle, SegmentWriter, canonical_values
from keyedstate.checkpoint.segment_format import SegmentFile
from keyedstate.checkpoint.storage import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.types import BOOLEAN, INT32, nullable, tuple_of

#: Entries that go into one columnar batch, as in a snapshot.
_BATCH_ENTRIES = 16_384

#: A changed entry by (namespace, key): whether it is there, and its value.
_Overlay = dict[tuple[Any, Any], tuple[bool, Any]]


def write_delta(
    storage: CheckpointStorage,
    path: str,
    key_groups: KeyGroupRange,
    metas: Mapping[str, StateMeta],
    changes: Mapping[str, TableChanges[Any, Any, Any]],
    compression: str = "zstd",
) -> SegmentFile:
    """Write what changed; to be released by the caller.

    Parameters
    ----------
    storage : CheckpointStorage
    path : str
        The new file.
    key_groups : KeyGroupRange
        Those of the instance.
    metas : mapping
        Of every state with changes, by name.
    changes : mapping
        What ``KeyedStateBackend.changes_since`` returned.
    compression : {"zstd", "lz4", "none"}

    Raises
    ------
    UnwritableEntryError, StorageError
        The file is not there then.
    """
    writer = SegmentWriter(storage, path, key_groups, compression)
    try:
        for name, changed in changes.items():
            writer.begin_state(_delta_meta(metas[name]))
            writer.write_entries(key_groups.start, _rows(key_groups, changed))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def _delta_meta(meta: StateMeta) -> StateMeta:
    value = meta.value_serializer
    return replace(
        meta, value_serializer=tuple_of(INT32, BOOLEAN, value if value.null_is_value else nullable(value))
    )


def _rows(
    key_groups: KeyGroupRange, changed: TableChanges[Any, Any, Any]
) -> Iterator[EntryBatch[Any, Any, Any]]:
    for group in key_groups:
        for batch in changed.written(group, _BATCH_ENTRIES):
            values = [(group, True, value) for value in batch.values]
            yield EntryBatch(batch.namespaces, batch.keys, values)
        for addresses in changed.removed(group, _BATCH_ENTRIES):
            gone = [(group, False, None)] * len(addresses)
            yield EntryBatch(addresses.namespaces, addresses.keys, gone)


class ChainHandle(StateHandle):
    """A base and the deltas that followed it, read as one snapshot.

    Parameters
    ----------
    base : SegmentHandle
    deltas : sequence of SegmentHandle
        In the order in which they were written, each over the key groups of the base.
    states : sequence of StateMeta
        The states after the last delta; their serializers are those of every file.

    Notes
    -----
    The deltas of a state are held in memory until their key groups were read, the base is not.
    """

    def __init__(
        self, base: SegmentHandle, deltas: Sequence[SegmentHandle], states: Sequence[StateMeta]
    ) -> None:
        self._base = base
        self._deltas = deltas
        self._states = {meta.name: meta for meta in states}
        #: By state, the changes of the key groups that were not handed out yet, and those that were.
        self._overlays: dict[str, dict[int, _Overlay]] = {}
        self._handed_out: dict[str, set[int]] = {}

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the base."""
        return self._base.key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        """The states after the last delta."""
        return tuple(self._states.values())

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of the base that no delta changed, then those that deltas wrote."""
        overlay = self._take_overlay(state, key_group)
        # Asked for first: most entries are not changed, and a pair is dearer to make than to look up a key.
        changed = {key for _, key in overlay}
        for batch in self._base.entries(state, key_group):
            if changed.isdisjoint(batch.keys):
                yield batch
                continue
            kept = [
                key not in changed or (namespace, key) not in overlay
                for namespace, key in zip(batch.namespaces, batch.keys, strict=True)
            ]
            columns = batch.namespaces, batch.keys, batch.values
            yield EntryBatch(*(list(compress(column, kept)) for column in columns))
        written = [(*address, value) for address, (is_there, value) in overlay.items() if is_there]
        if written:
            namespaces, keys, values = zip(*written, strict=True)
            yield EntryBatch(namespaces, keys, values)

    def close(self) -> None:
        """Close all files."""
        for handle in (self._base, *self._deltas):
            handle.close()

    def _take_overlay(self, state: str, key_group: int) -> _Overlay:
        """Return the changes of one key group, values of the caller's own: tables change theirs in place."""
        handed_out = self._handed_out.setdefault(state, set())
        if state not in self._overlays or key_group in handed_out:
            handed_out.clear()
            overlays: dict[int, _Overlay] = {}
            for delta in self._deltas:
                self._lay_over(delta, state, overlays)
            self._overlays[state] = overlays
        handed_out.add(key_group)
        return self._overlays[state].pop(key_group, {})

    def _lay_over(self, delta: SegmentHandle, state: str, overlay: dict[int, _Overlay]) -> None:
        serializer = self._states[state].value_serializer
        for batch in delta.entries(state, delta.key_groups.start):
            groups, present, values = zip(*batch.values, strict=True)
            columns = zip(
                groups,
                batch.namespaces,
                batch.keys,
                present,
                canonical_values(serializer, values),
                strict=True,
            )
            for group, namespace, key, is_there, value in columns:
                if group not in self.key_groups:
                    raise CorruptSegmentError(delta.location, f"a change of key group {group} is in it")
                overlay.setdefault(group, {})[namespace, key] = is_there, value
