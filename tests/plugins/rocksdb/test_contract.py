"""rocksdb against the contract of every backend, and what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rocksdict import Options, Rdict
from support.inside import rocksdb_rows, state_tables

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ListState, ManualClock, MapState, Ttl, ValueState
from keyedstate.testing import BackendContract, open_instance
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate_rocksdb.errors import CorruptDatabaseError, LockedDatabaseError, RefusedOptionsError, opened

VOID = types.VOID_NAMESPACE
NUMBERS = StateMeta("numbers", StateKind.VALUE, types.INT64, types.VOID, types.INT64)


class TestRocksDB(BackendContract):
    backend = "rocksdb"
    # On a busy machine flushes lag, and buffers of the default size would wait for them in memory.
    options: ClassVar[Mapping[str, object]] = {"rocksdb.write-buffer-size": 4 << 20}

    @pytest.mark.parametrize("name", ["default", "a/b", "naïve \U0001f600", "x" * 200, "state:"])
    def test_a_state_of_any_name_has_a_column_family_of_its_own(self, instance: Any, name: str) -> None:
        tables = [
            instance.table(StateMeta(each, StateKind.VALUE, types.INT64, types.VOID, types.INT64))
            for each in (name, name + "2")
        ]
        for number, table in enumerate(tables):
            table.put(3, 1, VOID, number)
        assert [table.get(3, 1, VOID) for table in tables] == [0, 1]
        families = Rdict.list_cf(str(instance.context.local_dir / "db"))
        assert families == ["default", f"state:{name}", f"state:{name}2"]

    def test_nothing_is_logged_ahead_and_the_private_folder_is_all_there_is(
        self, instance: Any, tmp_path: Path
    ) -> None:
        """WB-01: the write-ahead log is off."""
        table = instance.table(NUMBERS)
        table.put_many([3] * 5_000, range(5_000), VOID, range(5_000))
        logs = list((instance.context.local_dir / "db").glob("*.log"))
        assert sum(log.stat().st_size for log in logs) == 0
        assert list(tmp_path.iterdir()) == [instance.context.local_dir]

    def test_a_copy_is_read_to_its_end_after_the_instance_was_closed(self, instance: Any) -> None:
        """SNAP-01: closing waits for no thread, and open snapshots stay readable."""
        table = instance.table(NUMBERS)
        table.put_many([3] * 5_000, range(5_000), VOID, range(5_000))
        snapshot = table.snapshot()
        batches = snapshot.batches(3, 1_000)
        found = list(next(batches).values)
        instance.close()
        found += [value for batch in batches for value in batch.values]
        assert sorted(found) == list(range(5_000))
        snapshot.release()
        with pytest.raises(ValueError, match="released"):
            next(snapshot.batches(3, 10))

    def test_scans_and_look_ups_of_one_copy_do_not_disturb_each_other(self, instance: Any) -> None:
        table = instance.table(NUMBERS)
        table.put_many([3] * 50, range(50), VOID, range(50))
        table.write_back()
        copy = table.buffer.copy()
        rows = list(table.buffer.scan_all())
        first, second = copy.scan(b"", None), copy.scan(rows[7][0], rows[30][0])
        pairs = [(next(first), row) for row in second]
        assert [row for _, row in pairs] == rows[7:30]
        rest = [(row, copy.get_many([rows[40][0]])) for row in first]
        assert [row for row, _ in pairs + rest] == rows
        assert [found for _, found in rest] == [[rows[40][1]]] * 27
        copy.release()

    def test_a_batch_of_an_impossible_size_is_refused(self, tmp_path: Path) -> None:
        """WB-01: from 100 to 1000 rows."""
        for rows in (99, 1001):
            with pytest.raises(Exception, match=r"rocksdb\.write-batch-entries.*from 100 to 1000"):
                open_instance(
                    "rocksdb",
                    tmp_path,
                    options={"rocksdb.write-batch-entries": rows},
                    key_groups=KeyGroupRange(0, 1),
                    max_parallelism=2,
                )


@pytest.mark.parametrize("cleans", [True, False])
def test_what_is_expired_leaves_the_disk_without_being_read(tmp_path: Path, cleans: bool) -> None:
    """TTL-17: in steps at the end of epochs, and of lists and maps what is expired of them."""
    clock = ManualClock(0)
    keyed = KeyedInstances("rocksdb", tmp_path, {"rocksdb.expiry-sweep-entries": 7})
    backend = keyed.open(clock=clock)
    ttl = Ttl(100, background_cleanup=cleans)
    states: list[Any] = [
        ValueState("value", types.STRING, ttl=ttl),
        ListState("list", types.STRING, ttl=ttl),
        MapState("map", types.STRING, types.STRING, ttl=ttl),
    ]

    def write(key: int) -> None:
        backend.set_current_key(key)
        value, appended, entries = map(backend.get_state, states)
        value.update("x" * 100)
        appended.add(f"{clock.now}" * 50)
        entries.put(f"{clock.now}", "y" * 100)

    def rows_on_disk() -> int:
        found = 0
        for table in state_tables(backend).values():
            rows = rocksdb_rows(table)
            table.write_back()
            rows.flush(wait=True)
            rows.compact_range(None, None)
            found += len(list(rows.items()))
        return found

    for key in range(100):
        write(key)
    clock.now = 60
    for key in range(10):
        write(key)
    assert rows_on_disk() == 100 + 110 + 110
    for now, left in ((99, 320), (100, 30), (159, 30), (160, 0)):
        clock.now = now
        for _ in range(2 + 100 // 7):
            backend.end_epoch()
        assert rows_on_disk() == (left if cleans else 320)
    keyed.close()


def test_a_database_that_a_living_process_has_open_is_refused_by_its_folder(tmp_path: Path) -> None:
    holder = Rdict(str(tmp_path / "db"), options=Options(raw_mode=True))
    refused = pytest.raises(LockedDatabaseError, match=r"/db cannot be opened: .*Another process")
    with refused as caught, opened(tmp_path / "db"):
        Rdict(str(tmp_path / "db"), options=Options(raw_mode=True))
    assert caught.value.path == str(tmp_path / "db")
    holder.close()


@pytest.mark.parametrize("damage", ["missing", "swapped", "manifest"])
def test_a_database_with_a_missing_or_swapped_file_is_refused(tmp_path: Path, damage: str) -> None:
    def options() -> Options:
        made = Options(raw_mode=True)
        made.create_if_missing(True)
        return made

    for name in ("db", "other"):
        database = Rdict(str(tmp_path / name), options=options())
        for number in range(1_000 if name == "db" else 10):
            database[b"%d" % number] = name.encode()
        database.flush()
        database.close()
    (table,), (foreign,) = ((tmp_path / name).glob("*.sst") for name in ("db", "other"))
    if damage == "missing":
        table.unlink()
    elif damage == "swapped":
        table.write_bytes(foreign.read_bytes())
    else:
        (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
        manifest.write_bytes(manifest.read_bytes()[:-7] + b"garbage")
    with (
        pytest.raises(CorruptDatabaseError, match="restore from another checkpoint"),
        opened(tmp_path / "db"),
    ):
        Rdict(str(tmp_path / "db"), options=options())


def test_options_that_rocksdb_refuses_are_named_as_such(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Memory-mapped reads and direct ones at once.
    options.set_allow_mmap_reads(True)
    options.set_use_direct_reads(True)
    refused = pytest.raises(RefusedOptionsError, match=r"options that begin with 'rocksdb\.'")
    with refused, opened(tmp_path / "db"):
        Rdict(str(tmp_path / "db"), options=options)
