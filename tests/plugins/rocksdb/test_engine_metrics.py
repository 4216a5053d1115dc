"""What RocksDB reports, in the metrics of an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from rocksdb_incremental import Job
from support.inside import rocksdb_rows, rocksdb_store, state_tables

from keyedstate import types
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.state import ValueState
from keyedstate_rocksdb.engine_metrics import PROPERTIES, TICKERS
from keyedstate_rocksdb.errors import UnknownChoiceError

NUMBERS = ValueState("numbers", types.list_of(types.INT64))


def test_configured_properties_and_tickers_are_in_the_metrics_of_an_epoch(
    tmp_path: Path,
) -> None:
    asked = "estimate-num-keys, num-files-at-level0,bytes-written,block-cache-hit"
    job = Job(tmp_path, options={"rocksdb.metrics": asked})
    job.restart(2)
    job.run(lambda instance: None)

    def write(instance: object) -> None:
        state = instance.get_state(NUMBERS)  # type: ignore[attr-defined]
        keys = [key for key in range(100) if instance.current.key_group_of(key) in instance.key_groups]  # type: ignore[attr-defined]
        state.update_many(keys, [[key] for key in keys])
        state_tables(instance)["numbers"].write_back()  # type: ignore[attr-defined]

    parts = job.run(write)
    metrics = metrics_of_checkpoint(CheckpointMetadata.of(parts), 0, None)
    assert metrics.native["numbers.estimate-num-keys"] == 100
    assert metrics.native["bytes-written"] > 100 * 10
    assert metrics.native.keys() == {
        "numbers.estimate-num-keys",
        "numbers.num-files-at-level0",
        "bytes-written",
        "block-cache-hit",
    }
    assert from_json(AttemptManifest, to_json(parts[0])) == parts[0]
    job.restart(2, options={})
    (part, _) = job.run(write)
    assert part.metrics == {}
    job.close()


def test_every_figure_is_one_that_rocksdb_has(tmp_path: Path) -> None:
    job = Job(tmp_path, options={"rocksdb.metrics": ",".join((*PROPERTIES, *TICKERS))})
    job.restart()
    (part,) = job.run(lambda instance: instance.get_state(NUMBERS).update_many([1], [[1]]))
    assert part.metrics.keys() == {*(f"numbers.{name}" for name in PROPERTIES), *TICKERS}
    (instance,) = job.instances
    store = rocksdb_store(instance)
    rows = rocksdb_rows(state_tables(instance)["numbers"])
    missing = [name for name in PROPERTIES if rows.property_value(f"rocksdb.{name}") is None]
    assert missing == []
    statistics = store._options.get_statistics()
    assert [name for name in TICKERS.values() if f"rocksdb.{name} COUNT" not in statistics] == []
    job.close()


def test_a_name_that_is_no_figure_is_refused_with_all_that_are(tmp_path: Path) -> None:
    job = Job(tmp_path, options={"rocksdb.metrics": "estimate-num-keys, hits"})
    job.restart()
    with pytest.raises(
        UnknownChoiceError, match=r"rocksdb\.metrics is 'hits'\. Set it to one of .*bytes-read"
    ):
        job.run(lambda instance: instance.get_state(NUMBERS).update_many([1], [[1]]))
    job.close()
