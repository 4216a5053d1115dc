"""`end_epoch` of a per-record function in the tasks of Spark."""

from __future__ import annotations

import keyedstate as ks


class Balance(ks.KeyedProcessFunction):
    """Puts out the sum of a key once in each micro-batch with rows of it."""

    total = ks.ValueState("total", ks.types.INT64, default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)

    def end_epoch(self, ctx):
        yield ctx.key, self.total.value()


def test_a_micro_batch_ends_once_for_each_of_its_keys(spark, stream, one_backend):
    def out(frame, **options):
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state), "parallelism": 2}
        return ks.keyed(frame, "k", config=config, **options).process(Balance(), "k string, total long")

    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}])
    stream.add([{"k": "b", "v": 4}, {"k": "c", "v": 5}])
    stream.run(out(stream.frame(), uid="balance"))
    assert {epoch: sorted(map(tuple, rows)) for epoch, rows in stream.rows.items()} == {
        0: [("a", 4), ("b", 2)],
        1: [("b", 6), ("c", 5)],
    }
    assert sorted(map(tuple, out(stream.batch()).collect())) == [("a", 4), ("b", 6), ("c", 5)]
