"""``keyedstate checkpoint diff``: what differs between two stored states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from keyedstate.checkpoint.reading.comparison import (
    Change,
    Comparison,
    Example,
    StateDifference,
    compare,
)
from keyedstate.checkpoint.reading.json_values import json_value, shown_value
from keyedstate.checkpoint.reading.survey import bytes_of, entries_of
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.checkpoint.leases import SnapshotLeases
from keyedstate.cli.checkpoint.options import Uid
from keyedstate.cli.output import Format, attributes, console, print_json, progress, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage
from keyedstate.errors import UnknownOperatorError, UnknownStateError
from keyedstate.types import TypeSerializer

_COLUMNS = ("state", "kind", "difference", "before", "after", "added", "removed", "changed")
_NUMBERS = _COLUMNS[3:]

First = Annotated[str, typer.Argument(metavar="A", help="The stored state before; as PATH elsewhere.")]
Second = Annotated[str, typer.Argument(metavar="B", help="The stored state after; may be the same path.")]
EpochA = Annotated[
    int | None, typer.Option("--epoch-a", metavar="N", min=0, help="Of A, the checkpoint of this epoch.")
]
EpochB = Annotated[
    int | None, typer.Option("--epoch-b", metavar="N", min=0, help="Of B, the checkpoint of this epoch.")
]
States = Annotated[
    list[str] | None, typer.Option("--state", metavar="NAME", help="Only this state; may be repeated.")
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=0, help="Show so many entries of each state that differ.")
]


def diff(
    first: First,
    second: Second,
    uid: Uid = None,
    epoch_a: EpochA = None,
    epoch_b: EpochB = None,
    state: States = None,
    limit: Limit = 0,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Compare two stored states entry by entry; exit code 1 if they differ.

    They may be checkpoints or savepoints, of any backends and any parallelism.
    """
    sides = (open_storage(first, config), epoch_a), (open_storage(second, config), epoch_b)
    with SnapshotLeases() as leases:
        pairs, only = _paired(leases, *sides, uid)
        _check_states(pairs, state or ())
        entries = sum(entries_of(stored.metadata) for pair in pairs for stored in pair)
        size = sum(bytes_of(stored.metadata) for pair in pairs for stored in pair)
        with progress("comparing", size) as advance:
            step = leases.renewing(lambda done: advance(size * done // max(entries, 1)))
            found = [compare(*pair, names=state or (), limit=limit, advance=step) for pair in pairs]
    equal = not only and all(one.equal for one in found)
    if format is Format.json:
        lonely = [{"uid": name, "only_in": side} for name, side in sorted(only.items())]
        print_json({"equal": equal, "operators": [_document(one) for one in found], "unmatched": lonely})
    else:
        _print(console(), found, only, equal=equal)
    raise typer.Exit(0 if equal else 1)


def _paired(
    leases: SnapshotLeases,
    first: tuple[CheckpointStorage, int | None],
    second: tuple[CheckpointStorage, int | None],
    uid: str | None,
) -> tuple[list[tuple[OperatorSnapshot, OperatorSnapshot]], dict[str, str]]:
    """Return the pairs of operators to compare, and the operators of one side only, with its name."""
    locations = [SnapshotLocation.open(storage, uid) for storage, _ in (first, second)]
    names = [[operator.uid for operator in location.operators] for location in locations]
    if len(names[0]) == len(names[1]) == 1:
        # One is compared with one, also where a copy has another name.
        pairs, only = [(names[0][0], names[1][0])], {}
    else:
        for location, mine, theirs in zip(locations, names, names[::-1], strict=True):
            if len(theirs) == 1 and theirs[0] not in mine:
                raise UnknownOperatorError(location.address, theirs[0], mine)
        common = [name for name in names[0] if name in names[1]]
        pairs = [(name, name) for name in common]
        # Where one operator was named, the other side's other operators are not compared.
        several = min(map(len, names)) > 1
        only = {name: "a" for name in names[0] if name not in common and several}
        only |= {name: "b" for name in names[1] if name not in common and several}
    opened = [
        (leases.open(first[0], one, first[1]), leases.open(second[0], other, second[1]))
        for one, other in pairs
    ]
    return opened, only


def _check_states(pairs: Sequence[tuple[OperatorSnapshot, OperatorSnapshot]], wanted: Sequence[str]) -> None:
    known = {
        name for pair in pairs for stored in pair for name in (*stored.states(), *stored.operator_states())
    }
    for name in wanted:
        if name not in known and pairs:
            raise UnknownStateError(pairs[0][0].location, name, sorted(known))


def _document(one: Comparison) -> dict[str, Any]:
    return {
        "uid": one.second.metadata.uid,
        "a": {"location": one.first.location, "epoch": one.first.metadata.epoch},
        "b": {"location": one.second.location, "epoch": one.second.metadata.epoch},
        "equal": one.equal,
        "states": [_state(state) for state in one.states],
        "operator_states": [_state(state) for state in one.operator_states],
    }


def _state(state: StateDifference) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": state.kind,
        "difference": state.change.value,
        "types_a": _types(state.before),
        "types_b": _types(state.after),
        "entries_a": state.entries_before,
        "entries_b": state.entries_after,
        **attributes(state, "added", "removed", "changed"),
        "examples": [_example(state, example) for example in state.examples],
    }


def _types(types: Mapping[str, TypeSerializer[Any]] | None) -> dict[str, str] | None:
    return None if types is None else {part: repr(serializer) for part, serializer in types.items()}


def _example(state: StateDifference, example: Example) -> dict[str, Any]:
    return {
        "difference": example.change.value,
        "key_group": example.key_group,
        "namespace": json_value(example.namespace),
        "key": json_value(example.key),
        "a": None if example.change is Change.ADDED else json_value(example.before, _value(state.before)),
        "b": None if example.change is Change.REMOVED else json_value(example.after, _value(state.after)),
    }


def _value(types: Mapping[str, TypeSerializer[Any]] | None) -> TypeSerializer[Any] | None:
    return None if types is None else types["value"]


def _print(out: Console, found: Sequence[Comparison], only: Mapping[str, str], *, equal: bool) -> None:
    for one in found:
        for side, stored in (("a", one.first), ("b", one.second)):
            out.print(f"{side}  {stored.location}, epoch {stored.metadata.epoch}")
        states = [*one.states, *one.operator_states]
        out.print(table(_COLUMNS, [_row(state) for state in states], _NUMBERS))
        for state in states:
            if state.before is not None and state.after is not None:
                for part, before in state.before.items():
                    if before != state.after[part]:
                        out.print(f"{state.name}: its {part} was {before!r} and is {state.after[part]!r}")
            for example in state.examples:
                out.print(f"{state.name}: {_words(state, example)}")
        out.print()
    for name, side in sorted(only.items()):
        out.print(f"The operator {name} is only in {side}.")
    out.print("They are equal." if equal else "They differ.")


def _row(state: StateDifference) -> list[str]:
    counts = state.entries_before, state.entries_after, state.added, state.removed, state.changed
    return [state.name, state.kind, state.change.value, *(f"{count:,}" for count in counts)]


def _words(state: StateDifference, example: Example) -> str:
    where = shown_value(example.key)
    if example.namespace is not None and json_value(example.namespace) is not None:
        where += f" in {shown_value(example.namespace)}"
    before = shown_value(example.before, _value(state.before))
    after = shown_value(example.after, _value(state.after))
    if example.change is Change.ADDED:
        return f"{where} was added: {after}"
    if example.change is Change.REMOVED:
        return f"{where} was removed: {before}"
    return f"{where} was {before} and is {after}"
