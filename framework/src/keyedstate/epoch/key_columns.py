"""The key columns of an operator, compared with those that its state was written with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.errors import KeyColumnsChangedError, StateMigrationError


def refuse_reordered_key(
    uid: str, key_columns: Sequence[tuple[str, str]], restore_point: CheckpointMetadata | None
) -> None:
    """Raise `KeyColumnsChangedError` for another order: with the same types, no key would be found."""
    if restore_point is None:
        return
    before = [name for name, _ in restore_point.key_columns]
    now = [name for name, _ in key_columns]
    if before != now and sorted(before) == sorted(now):
        raise KeyColumnsChangedError(uid, before, now)


@contextlib.contextmanager
def naming_key_columns(
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
