"""heap-cow's tables of columns and those of objects read each other's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyedstate.backend import ColumnTable
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing.contract.base import KEY_GROUPS, MAX_PARALLELISM, content
from keyedstate.testing.contract.suites.columns import KEYS, METAS, NAMESPACES, group_of, shown
from keyedstate.testing.instances import Instance, open_instance
from keyedstate_heap_cow.compiled_form import map_module

FORMS = ("auto", "never")


def opened(folder: Path, form: str, key_groups: KeyGroupRange = KEY_GROUPS, handles: Any = ()) -> Instance:
    options = {"heap-cow.compiled": form}
    return open_instance(
        "heap-cow",
        folder,
        options=options,
        key_groups=key_groups,
        max_parallelism=MAX_PARALLELISM,
        handles=handles,
    )


def test_tables_of_numbers_are_columns_where_the_map_is_compiled(tmp_path: Path) -> None:
    instance = opened(tmp_path, "auto")
    assert isinstance(instance.table(METAS[0]), ColumnTable) is map_module().COMPILED
    instance.close()


@pytest.mark.parametrize("meta", METAS, ids=["text", "whole", "real", "pair"])
@pytest.mark.parametrize("before", FORMS)
def test_either_form_restores_what_the_other_wrote(tmp_path: Path, before: str, meta: Any) -> None:
    source = opened(tmp_path, before)
    values = (
        None,
        (None,) * 6,
        (-(2**63), -0.0, True, 5, 0.5, None),
        (0, float("nan"), None, None, None, None),
    )
    model = {
        (group_of(key), key, namespace): values[(place + other) % len(values)]
        for place, key in enumerate(KEYS[meta])
        for other, namespace in enumerate(NAMESPACES)
    }
    for address, value in model.items():
        source.table(meta).put(*address, value)
    handle = source.write(source.prepare(), tmp_path)
    (after,) = set(FORMS) - {before}
    for groups in (KEY_GROUPS, KeyGroupRange(KEY_GROUPS.start, KEY_GROUPS.start + 2)):
        restored = opened(tmp_path, after, groups, [handle])
        assert {repr(key): shown(value) for key, value in content(restored.table(meta)).items()} == {
            repr(address): shown(value) for address, value in model.items() if address[0] in groups
        }
        restored.close()
    source.close()
