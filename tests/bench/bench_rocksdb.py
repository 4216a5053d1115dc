"""The RocksDB backend against rocksdict with the same bytes, and what an incremental snapshot uploads.

    python tests/bench/bench_rocksdb.py [--entries N] [--rounds N] [--markdown FILE]
    python tests/bench/bench_rocksdb.py --large 50000000

- single: one table call per operation, keys and values as Python objects, against one call of rocksdict with
  the bytes made before; without the cache of objects, and ("again") with it, of entries that it has;
- bulk: `put_many` and `get_many` of 1,000 keys, against a write batch and a list look-up of rocksdict;
- snapshots: bytes that a native full snapshot uploads after 1 % of the entries changed, against the first;
- large: a state of so many entries in 4 GiB of memory, which the process is limited to: built, checkpointed,
  changed by 1 %, checkpointed again, and restored at another parallelism.
"""

from __future__ import annotations

import argparse
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from measuring import ALL, GROUPS, VOID, Keys, Result, open_backend, per_operation
from rocksdict import Rdict, WriteBatch, WriteOptions
from state_large import large_state, limit_memory

from keyedstate import types
from keyedstate.checkpoint.format.native_files import write_native
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.memory import STATE_BACKEND
from keyedstate.state import ValueState
from keyedstate.testing.instances import chosen_backend
from keyedstate_rocksdb.memory import shared_memory
from keyedstate_rocksdb.tuning import Tuning

#: Keys of one bulk call.
_BULK = 1_000


def timed(work: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of this thread alone: what RocksDB does beside it is the same for both."""
    began = time.thread_time()
    work(*arguments)
    return time.thread_time() - began


def fresh(objects: list[Any]) -> list[Any]:
    """Return equal objects that were made a moment ago, as those of a new Arrow batch are."""
    return pa.array(objects).to_pylist()  # type: ignore[no-any-return]


@contextmanager
def raw_database() -> Iterator[tuple[Rdict, Callable[[list[bytes], list[bytes]], None]]]:
    """A database with the options of the backend's, and a function that writes a batch."""
    options = chosen_backend("rocksdb", {})[1]
    with shared_memory(options, STATE_BACKEND) as memory, tempfile.TemporaryDirectory() as folder:
        tuning = Tuning(options, memory)
        database = Rdict(folder + "/db", options=tuning.database())
        rows = database.create_column_family("raw", tuning.column_family("raw", 1))
        write = WriteOptions()
        write.disable_wal = True
        rows.set_write_options(write)
        handle = database.get_column_family_handle("raw")

        def write_batch(wanted: list[bytes], values: list[bytes]) -> None:
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(handle)
            put = batch.put
            for key, value in zip(wanted, values, strict=True):
                put(key, value)
            database.write(batch, write)

        yield rows, write_batch
        rows.close()
        database.close()


def access(count: int, rounds: int, cached: bool) -> list[Result]:
    keys = Keys(count)
    backend = open_backend("rocksdb", **({} if cached else {"rocksdb.memory-object-ratio": 0}))
    backend.get_state(ValueState("state", types.INT64))
    table: Any = backend._tables["state"]
    address, encode = table.codec.layout.address, table.codec.encode
    chunks = [keys.visits[start : start + _BULK] for start in range(0, count, _BULK)]
    with raw_database() as (raw, write_batch):

        def raw_put(rows: list[bytes], values: list[bytes]) -> None:
            put = raw.put
            for row, value in zip(rows, values, strict=True):
                put(row, value)

        def raw_get(rows: list[bytes], values: list[bytes]) -> None:
            get = raw.get
            for row in rows:
                get(row)

        def put(groups: list[int], chosen: list[str], values: list[int]) -> None:
            put = table.put
            for group, key, value in zip(groups, chosen, values, strict=True):
                put(group, key, VOID, value)

        def get(groups: list[int], chosen: list[str], values: list[int]) -> None:
            get = table.get
            for group, key in zip(groups, chosen, strict=True):
                get(group, key, VOID)

        def put_many(groups: list[int], chosen: list[str], values: list[int]) -> None:
            table.put_many(groups, chosen, VOID, values)

        def get_many(groups: list[int], chosen: list[str], values: list[int]) -> None:
            table.get_many(groups, chosen, VOID)

        def both(over_raw: Callable[..., object], over_table: Callable[..., object]) -> tuple[float, float]:
            """Return the seconds of each, in turns: whatever else the machine does meets both."""
            # Both from empty buffers: a large one is dearer to insert into.
            raw.flush(wait=True)
            table.write_back()
            table.buffer._space.rows.flush(wait=True)
            spent = [0.0, 0.0]
            for number, chunk in enumerate(chunks):
                values = list(range(len(chunk)))
                rows = [address(group, key, VOID) for group, key in chunk]
                groups, chosen = [group for group, _ in chunk], [key for _, key in chunk]
                runs = [
                    (0, over_raw, (fresh(rows), fresh(list(map(encode, values))))),
                    (1, over_table, (groups, fresh(chosen), fresh(values))),
                ]
                for place, work, arguments in runs[:: 1 if number % 2 else -1]:
                    spent[place] += timed(work, *arguments)
            return spent[0], spent[1]

        pairs: dict[str, tuple[Callable[..., object], Callable[..., object], str]] = {
            "put": (raw_put, put, "at most 1.6"),
            "get": (raw_get, get, "at most 1.6"),
            "put_many": (write_batch, put_many, "at most 1.15"),
            "get_many": (lambda rows, values: raw.get(rows), get_many, "at most 1.15"),
        }
        results = []
        for name, (over_raw, over_table, limit) in pairs.items():
            both(over_raw, over_table)
            found = sorted(
                (both(over_raw, over_table) for _ in range(rounds)), key=lambda two: two[1] / two[0]
            )
            floor, figure = found[rounds // 2]
            results.append(
                per_operation(
                    f"{name}{' again' if cached else ''}",
                    figure,
                    count,
                    "rocksdict",
                    floor / count * 1e9,
                    limit,
                )
            )
    backend.close()
    return results


def uploads(count: int) -> list[Result]:
    keys = Keys(count)
    backend = open_backend("rocksdb", **{"rocksdb.incremental": True})
    backend.get_state(ValueState("state", types.INT64))
    table = backend._tables["state"]
    table.put_many(keys.groups, keys.keys, VOID, range(count))
    written = []
    with tempfile.TemporaryDirectory() as folder:
        storage = CheckpointStorage.open(folder)
        completed: dict[str, Any] = {}
        for number in range(2):
            snapshot = backend.native_snapshot(number)
            assert snapshot is not None
            path = f"data/{number}.seg"
            full, size = write_native(storage, path, ALL, GROUPS, "rocksdb", snapshot, completed)
            snapshot.release()
            completed = {file.path: file for file in full.files}
            written.append(size)
            chosen = random.Random(number).sample(range(count), count // 100)
            table.put_many(
                [keys.groups[one] for one in chosen], [keys.keys[one] for one in chosen], VOID, chosen
            )
    backend.close()
    first, second = written
    what = f"native full snapshot after 1 % of {count:,} entries changed"
    return [Result(what, f"{second:,} bytes", f"the first {first:,}", second / first, "at most 0.10")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--large", type=int, metavar="N", help="only a state of N entries")
    arguments = parser.parse_args()
    if arguments.large:
        limit_memory(4 << 30)
        for line in large_state(arguments.large):
            print(f"{line.what:70} {line.figure:>8}  {line.floor}", flush=True)
        return
    lines = ["| what | figure | in the same run | ratio | asked for |", "|---|---|---|---|---|"]
    measured = [access(arguments.entries, arguments.rounds, cached) for cached in (False, True)]
    for result in (*measured[0], *measured[1], *uploads(5 * arguments.entries)):
        assert result.ratio is not None
        lines.append(
            f"| {result.what} | {result.figure} | {result.floor} | {result.ratio:.2f} | {result.limit} |"
        )
        print(lines[-1], flush=True)
    if arguments.markdown:
        head = f"# RocksDB benchmark\n\nWritten by `make bench-rocksdb`. {platform.platform()}\n\n"
        arguments.markdown.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
