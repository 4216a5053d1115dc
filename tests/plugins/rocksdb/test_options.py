"""Memory, predefined sets and single options of RocksDB, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import Job, tables_of
from support.inside import rocksdb_rows, rocksdb_store

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.errors import MemoryBudgetError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.memory import process_memory
from keyedstate.state import ValueState
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import META
from keyedstate_rocksdb.errors import OptionsFactoryError, SmallBudgetError, UnknownChoiceError
from keyedstate_rocksdb.memory import arena_block_bytes, cache_bytes, mutable_bytes, write_buffer_bytes

MIB = 1 << 20
SETS = ("DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED")


def opened(folder: Path, options: Mapping[str, object]) -> Any:
    return open_instance(
        "rocksdb", folder, options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
    )


def written_options(instance: Any, state: str) -> dict[str, str]:
    """Return what RocksDB itself has written down about a column family."""
    (file, *_) = sorted((instance.context.local_dir / "db").glob("OPTIONS-*"), reverse=True)
    sections = file.read_text().split("\n[")
    name = state.replace(":", "\\:")
    (section,) = (text for text in sections if text.startswith(f'CFOptions "{name}"'))
    table = sections[sections.index(section) + 1]
    lines = [line.strip() for line in (section + "\n" + table).splitlines() if "=" in line]
    return dict(line.split("=", 1) for line in lines)


def test_a_budget_is_divided_between_the_cache_and_what_is_to_be_flushed() -> None:
    """Flink's ``RocksDBMemoryControllerUtilsTest``, its formulas on one number."""
    assert cache_bytes(64 * MIB, 0.5) == int(64 * MIB * 2.5 / 3)
    assert write_buffer_bytes(64 * MIB, 0.5) == 64 * MIB // 3
    assert mutable_bytes(800) == 700
    assert [arena_block_bytes(size, 64 * MIB) for size in (0, 64 * MIB, 1 << 40)] == [8 << 10, 128 << 10, MIB]
    assert arena_block_bytes(64 * MIB, 512 << 10) == 64 << 10


def test_all_databases_of_a_process_share_one_budget(tmp_path: Path) -> None:
    options = {"rocksdb.memory-budget": 24 * MIB}
    instances = [opened(tmp_path, options) for _ in range(2)]
    memories = []
    for instance in instances:
        table = instance.table(META)
        table.put_many([0] * 500, [str(n) for n in range(500)], 1, [[n] for n in range(500)])
        memories.append(instance.context.resources["ordered store"]._tuning.memory)
    first, second = memories
    assert first is second
    assert first.write_buffers.get_buffer_size() == 4 * MIB
    assert first.write_buffers.enabled()
    assert first.write_buffers.get_usage() > 0
    other = opened(tmp_path, {"rocksdb.memory-budget": 26 * MIB})
    other.table(META)
    assert other.context.resources["ordered store"]._tuning.memory is not first
    for instance in (*instances, other):
        instance.close()


def test_without_a_budget_databases_share_a_part_of_the_managed_memory(tmp_path: Path) -> None:
    memory = process_memory()
    free = memory.manager.available_bytes
    instances = [opened(tmp_path, {}) for _ in range(2)]
    for instance in instances:
        instance.table(META).put(0, "a", 1, [1])
        assert memory.manager.available_bytes == free - 256 * MIB, "today's default"
    first, second = (instance.context.resources["ordered store"]._tuning.memory for instance in instances)
    assert first is second
    assert first.objects.size == 128 * MIB
    assert first.write_buffers.get_buffer_size() == 128 * MIB // 3
    instances[0].close()
    assert memory.manager.available_bytes == free - 256 * MIB
    instances[1].close()
    assert memory.manager.available_bytes == free


def test_databases_with_other_ratios_share_the_same_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = process_memory().manager
    first, second = opened(tmp_path, {}), opened(tmp_path, {"rocksdb.memory-write-ratio": 0.25})
    first.table(META)
    free = manager.available_bytes
    second.table(META)
    assert manager.available_bytes == free
    assert "rocksdb.memory-write-ratio=0.25" in caplog.text and "have no effect" in caplog.text
    first.close()
    second.close()


@pytest.mark.parametrize("budget", [0, 24 * MIB])
def test_a_fixed_budget_is_no_part_of_the_managed_memory(tmp_path: Path, budget: int) -> None:
    free = process_memory().manager.available_bytes
    instance = opened(tmp_path, {"rocksdb.memory-budget": budget})
    instance.table(META).put(0, "a", 1, [1])
    assert process_memory().manager.available_bytes == free
    instance.close()


def test_a_database_is_refused_where_others_have_taken_the_managed_memory(tmp_path: Path) -> None:
    manager = process_memory().manager
    manager.reserve("a sorter", manager.available_bytes - MIB)
    instance = opened(tmp_path, {})
    with pytest.raises(MemoryBudgetError, match=r"rocksdb with the share 'state-backend'.*a sorter"):
        instance.table(META)
    manager.release_all("a sorter")
    instance.table(META).put(0, "a", 1, [1])
    instance.close()


def test_a_database_that_is_not_used_gives_back_its_write_buffer(tmp_path: Path) -> None:
    """RocksDB flushes only buffers of the database that is written to."""
    options = {"rocksdb.memory-budget": 24 * MIB}
    idle, busy = (opened(tmp_path, options) for _ in range(2))
    tables: list[Any] = [instance.table(META) for instance in (idle, busy)]
    memory = idle.context.resources["ordered store"]._tuning.memory
    rows = idle.context.resources["ordered store"].open_space(META.name).rows

    def files() -> int:
        return int(rows.property_int_value("rocksdb.num-files-at-level0"))

    tables[0].put_many([0] * 500, [f"few-{n}" for n in range(500)], 1, [[n] for n in range(500)])
    tables[0].trim(0.0)
    assert files() == 0, "there is room for more"
    for n in range(8):
        tables[0].put_many([0] * 500, [f"{n}-{m}" for m in range(500)], 1, [list(range(100))] * 500)
    used = memory.write_buffers.get_usage()
    assert used > memory.mutable_bytes // 2
    tables[0].trim(0.0)
    assert files() == 1
    assert memory.write_buffers.get_usage() < used // 4
    assert tables[0].get(0, "7-499", 1) == list(range(100))
    for instance in (idle, busy):
        instance.close()


def test_a_hundred_states_with_a_few_rows_leave_room_in_the_write_buffers(tmp_path: Path) -> None:
    """Each state of each partition has one, and where no room is left, each write flushes."""
    options = {"rocksdb.memory-budget": 256 * MIB}
    instances = [opened(tmp_path, options) for _ in range(10)]
    for instance in instances:
        for number in range(10):
            table = instance.table(replace(META, name=f"state-{number}"))
            table.put_many([0] * 500, [str(n) for n in range(500)], 1, [[n] for n in range(500)])
    memory = instances[0].context.resources["ordered store"]._tuning.memory
    assert len(memory.spaces) == 100
    assert memory.write_buffers.get_usage() < memory.mutable_bytes // 2
    for instance in instances:
        instance.close()
    assert len(memory.spaces) == 0


def test_many_databases_of_one_state_leave_room_in_the_write_buffers(tmp_path: Path) -> None:
    instances = [opened(tmp_path, {"rocksdb.memory-budget": 256 * MIB}) for _ in range(70)]
    for instance in instances:
        instance.table(META)
    memory = instances[0].context.resources["ordered store"]._tuning.memory
    assert memory.write_buffers.get_usage() < memory.mutable_bytes // 3
    for instance in instances:
        instance.close()


def test_states_that_are_restored_leave_as_much_room_in_the_write_buffers_as_new_ones(tmp_path: Path) -> None:
    job = Job(tmp_path, options={"rocksdb.incremental": True, "rocksdb.memory-budget": 256 * MIB})
    job.restart()
    states = [ValueState(f"state-{number}", types.INT64) for number in range(70)]
    job.run(lambda instance: [instance.get_state(state).update_many([1], [2]) for state in states] and None)
    used = []
    for _ in range(2):
        memory = rocksdb_store(job.instances[0])._tuning.memory
        used.append(memory.write_buffers.get_usage())
        job.restart()
    assert used[1] <= used[0] < memory.mutable_bytes // 2
    job.close()


def test_a_budget_bounds_what_waits_in_memory(tmp_path: Path) -> None:
    options = {"rocksdb.memory-budget": 24 * MIB, "rocksdb.write-buffer-size": 1 * MIB}
    instance = opened(tmp_path, options)
    table = instance.table(META)
    for round_ in range(20):
        table.put_many([0] * 500, [f"{round_}-{n}" for n in range(500)], 1, [list(range(250))] * 500)
    memory = instance.context.resources["ordered store"]._tuning.memory
    assert memory.write_buffers.get_usage() <= 8 * MIB
    assert list((instance.context.local_dir / "db").glob("*.sst")), "the rest was flushed"
    assert len(table) == 10_000
    instance.close()


def test_a_budget_in_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    instance = opened(tmp_path, {"rocksdb.memory-budget": 1000})
    with pytest.raises(SmallBudgetError, match=r"has 1000 bytes.*Raise memory.managed-size or its weight"):
        instance.table(META)
    instance.close()


@pytest.mark.parametrize("name", SETS)
def test_each_predefined_set_opens_a_database_and_single_options_win(tmp_path: Path, name: str) -> None:
    options = {"rocksdb.predefined-options": name, "rocksdb.level-base-size": 32 * MIB}
    instance = opened(tmp_path, options)
    table = instance.table(META)
    table.put(0, "a", 1, [1])
    assert table.get(0, "a", 1) == [1]
    written = written_options(instance, "state:visits")
    high = name.endswith("HIGH_MEM")
    assert written["max_bytes_for_level_base"] == str(32 * MIB)
    assert written["target_file_size_base"] == str((256 if high else 64) * MIB)
    assert written["block_size"] == str(128 << 10 if high else 4 << 10)
    assert written["level_compaction_dynamic_level_bytes"] == str(name != "DEFAULT").lower()
    assert "bloom" in written["filter_policy"]
    instance.close()


def test_options_that_are_set_one_by_one_reach_rocksdb(tmp_path: Path) -> None:
    instance = opened(
        tmp_path,
        {
            "rocksdb.memory-budget": 0,
            "rocksdb.compression": "zstd",
            "rocksdb.compaction-style": "universal",
            "rocksdb.write-buffer-size": 5 * MIB,
            "rocksdb.write-buffers": 7,
            "rocksdb.write-buffers-to-merge": 2,
            "rocksdb.bloom-filter-bits": 12,
        },
    )
    instance.table(META).put(0, "a", 1, [1])
    written = written_options(instance, "state:visits")
    assert written["compression"] == "kZSTD"
    assert written["compaction_style"] == "kCompactionStyleUniversal"
    assert written["write_buffer_size"] == str(5 * MIB)
    assert written["max_write_buffer_number"] == "7"
    assert written["min_write_buffer_number_to_merge"] == "2"
    assert "bloom" in written["filter_policy"]
    instance.close()


@pytest.mark.parametrize(("budget", "filled"), [(0, 64 * MIB), (48 * MIB, 7 * MIB), (1024 * MIB, 64 * MIB)])
def test_the_filter_of_a_write_buffer_is_for_what_the_budget_lets_it_hold(
    tmp_path: Path, budget: int, filled: int
) -> None:
    """Of 48 MiB half is for objects, a third of the rest for buffers, and 7/8 of that for active ones."""
    instance = opened(tmp_path, {"rocksdb.memory-budget": budget})
    instance.table(META).put(0, "a", 1, [1])
    written = written_options(instance, "state:visits")
    assert float(written["memtable_prefix_bloom_size_ratio"]) == pytest.approx(
        filled / (64 * MIB) / 64, rel=1e-3
    )
    assert written["memtable_whole_key_filtering"] == "true"
    instance.close()


@pytest.mark.parametrize(("budget", "inside"), [(24 * MIB, "true"), (0, "false")])
def test_indexes_and_filters_are_in_the_cache_of_a_budget_by_partitions(
    tmp_path: Path, budget: int, inside: str
) -> None:
    instance = opened(tmp_path, {"rocksdb.memory-budget": budget})
    instance.table(META).put(0, "a", 1, [1])
    written = written_options(instance, "state:visits")
    assert written["cache_index_and_filter_blocks"] == inside
    assert written["partition_filters"] == inside
    assert (written["index_type"] == "kTwoLevelIndexSearch") is (inside == "true")
    instance.close()


def test_without_bits_neither_files_nor_write_buffers_have_a_filter(tmp_path: Path) -> None:
    instance = opened(tmp_path, {"rocksdb.bloom-filter-bits": 0})
    instance.table(META).put(0, "a", 1, [1])
    written = written_options(instance, "state:visits")
    assert "bloom" not in written["filter_policy"]
    assert float(written["memtable_prefix_bloom_size_ratio"]) == 0
    instance.close()


def test_a_function_of_the_user_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rocks.py").write_text(
        "seen = []\n"
        "def tune(what, options):\n"
        "    seen.append(what)\n"
        "    if what == 'visits':\n"
        "        options.set_max_write_buffer_number(9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"rocksdb.options-factory": "my_rocks:tune", "rocksdb.write-buffers": 3}
    instance = opened(tmp_path, options)
    instance.table(META).put(0, "a", 1, [1])
    assert written_options(instance, "state:visits")["max_write_buffer_number"] == "9"
    import my_rocks  # type: ignore[import-not-found]

    assert my_rocks.seen == ["", "default", "visits"]
    instance.close()


@pytest.mark.parametrize("name", ["no_such_module:tune", "json:no_such_name", "json", "json:__doc__"])
def test_a_function_that_cannot_be_had_is_named(tmp_path: Path, name: str) -> None:
    instance = opened(tmp_path, {"rocksdb.options-factory": name})
    with pytest.raises(OptionsFactoryError, match="Give module:function"):
        instance.table(META)
    instance.close()


@pytest.mark.parametrize("option", ["compression", "compaction-style", "dynamic-level-size"])
def test_a_word_that_rocksdb_does_not_know_is_refused_with_those_that_it_does(
    tmp_path: Path, option: str
) -> None:
    instance = opened(tmp_path, {f"rocksdb.{option}": "best"})
    with pytest.raises(UnknownChoiceError, match=rf"rocksdb\.{option} is 'best'. Set it to one of \w+"):
        instance.table(META)
    instance.close()


def test_many_small_checkpoints_leave_few_files(tmp_path: Path) -> None:
    """SNAP-05: 50 checkpoints of one key each."""
    job = Job(tmp_path, options={"rocksdb.incremental": True, "rocksdb.merge-small-files": 10})
    job.restart()
    (instance,) = job.instances
    state = instance.get_state(ValueState("numbers", types.INT64))

    def put(key: int) -> None:
        instance.set_current_key(key)
        state.update(key)

    for number in range(50):
        (part,) = job.run(lambda _, number=number: put(number))  # type: ignore[misc]
    assert len(tables_of(part)) <= 25
    job.restart()
    assert sorted(job.instances[0].get_keys("numbers")) == list(range(50))
    job.close()


def test_entries_are_kept_as_objects_in_their_share_of_the_budget(tmp_path: Path) -> None:
    numbers = StateMeta("numbers", StateKind.VALUE, types.INT64, types.VOID, types.INT64)
    for options, size in (
        ({"rocksdb.memory-budget": 20 * MIB}, 10 * MIB),
        ({"rocksdb.memory-budget": 20 * MIB, "rocksdb.memory-object-ratio": 0.25}, 5 * MIB),
        ({"rocksdb.memory-object-ratio": 0}, None),
        ({"rocksdb.memory-budget": 0}, None),
    ):
        instance = opened(tmp_path, options)
        table = instance.table(numbers)
        table.put_many([0] * 600, range(600), types.VOID_NAMESPACE, range(600))
        objects = instance.context.resources["ordered store"].objects
        assert (None if objects is None else objects.size) == size
        rows = rocksdb_rows(table)
        assert len(list(rows.items())) == (600 if size is None else 0), "written when they have to be"
        table.write_back()
        assert len(list(rows.items())) == 600
        instance.close()
    instance = opened(tmp_path, {"rocksdb.memory-budget": 6 * MIB})
    with pytest.raises(SmallBudgetError, match=f"needs {8 * MIB} at the least"):
        instance.table(numbers)
    instance.close()
