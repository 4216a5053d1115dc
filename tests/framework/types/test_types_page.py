"""The page docs/reference/types.md says what the code does: every cell of its table is computed."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.inside import registrations

from keyedstate import types

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "types.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")


def namespace() -> dict[str, Any]:
    """Return the names that the cells use: the package, and the classes of the page's example."""
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = dict(vars(types), dt=dt, uuid=uuid, np=np, pd=pd, UTC=dt.timezone.utc, __name__=__name__)
    exec(compile(example, "docs/reference/types.md", "exec", dont_inherit=True), names)
    return names


NAMES = namespace()


def evaluated(code: str) -> Any:
    return eval(code, NAMES)


ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.split("## All types")[1].split("##")[0].splitlines()
    if line.startswith("| `")
]
TYPES = {CODE.findall(row[0])[0]: row for row in ROWS}
each_row = pytest.mark.parametrize("name", TYPES)


def test_every_built_in_type_has_a_row() -> None:
    shown = {evaluated(name).type_name for name in TYPES}
    own = {
        name
        for name, registration in registrations().items()
        if registration.factory.__module__.startswith("keyedstate.types")
    }
    # What a state with a time to live stores, and an aggregate: no types that users declare.
    assert own == shown | {"ttl", "ttl-list", "ttl-map", "accumulators"}


@each_row
def test_the_arrow_column_is_the_one_that_the_page_names(name: str) -> None:
    assert CODE.findall(TYPES[name][2]) == [str(evaluated(name).arrow_type)]


@each_row
def test_the_example_has_the_bytes_that_the_page_shows(name: str) -> None:
    serializer = evaluated(name)
    code, expected = CODE.findall(TYPES[name][4])
    value = eval(code, {**NAMES, "Row": getattr(serializer, "python_type", None)})
    serializer.check(value)
    assert serializer.to_bytes(value).hex() == expected


@each_row
def test_a_type_may_become_exactly_the_types_of_the_page_that_it_names(name: str) -> None:
    old = evaluated(name)
    listed = [evaluated(code) for code in CODE.findall(TYPES[name][5])]
    accepted = {
        repr(new)
        for new in map(evaluated, TYPES)
        if new != old
        and isinstance(new, types.NullableSerializer) == isinstance(old, types.NullableSerializer)
        and not new.resolve_compatibility(old.snapshot()).is_incompatible
    }
    shown = {repr(evaluated(other)) for other in TYPES}
    assert accepted == {repr(new) for new in listed} & shown
    for new in listed:
        assert not new.resolve_compatibility(old.snapshot()).is_incompatible


@each_row
def test_every_type_may_become_nullable(name: str) -> None:
    old = evaluated(name)
    if not old.null_is_value:
        assert not types.nullable(old).resolve_compatibility(old.snapshot()).is_incompatible
