"""A job whose columns grow far beyond their memory, and are then used at random; run by test_limits.py.

    python growing_columns.py FOLDER ENTRIES BUDGET

The budget, in bytes, comes on top of what the process occupies before.  It prints a line of JSON when it
begins, and another one when every entry was read again and was right.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
from growing_job import GROUPS, occupied, opened, tell

from keyedstate import types
from keyedstate.backend import Column
from keyedstate.state import ValueState
from keyedstate.types import VOID_NAMESPACE

#: As many rows as a batch of an aggregation has.
CHUNK = 10_000
#: Chunks of an epoch.
EPOCH = 10


def main() -> None:
    folder, entries, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    state = ValueState("state", types.accumulators_of({"sum": types.nullable(types.INT64)}))
    random = np.random.default_rng(1)
    first = np.split(np.arange(entries), range(CHUNK, entries, CHUNK))
    later = [np.unique(random.integers(0, entries, CHUNK)) for _ in range(entries // CHUNK // 2)]
    expected = np.full(entries, 0)
    before = occupied("VmRSS")
    keyed = opened(folder, before + budget)
    keyed.get_state(state)
    table: Any = keyed._tables["state"]

    def located(keys: Any) -> Any:
        return table.locate(
            [pa.array(keys, pa.int64())], (keys % len(GROUPS)).astype(np.int32), [VOID_NAMESPACE]
        )

    tell({"most": before + budget})
    for number, keys in enumerate([*first, *later]):
        if number % EPOCH == 0:
            epoch = number // EPOCH + 1
            if epoch > 1:
                keyed.end_epoch()
                keyed.changes_since(epoch - 2)["state"].release()
            keyed.begin_epoch(epoch)
            keyed.forget_changes(epoch - 1)
        some = located(keys)
        expected[keys] += keys + number
        (sums,) = some.read()
        some.write([Column(np.where(sums.there, sums.values, 0) + keys + number)])
        keyed.balance_memory()
    assert keyed.num_entries() == entries
    for keys in first:
        assert (located(keys).read()[0].values == expected[keys]).all()
        keyed.balance_memory()
    tell({"metrics": dict(keyed.metrics())})
    keyed.close()


if __name__ == "__main__":
    main()
