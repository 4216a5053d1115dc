"""The broadcast side and operator state in a harness: every instance has its own, rescaled as in a job."""

from __future__ import annotations

import pytest

from keyedstate import types
from keyedstate.errors import HarnessSchemaError, HarnessSettingError, InputRowError, UserFunctionError
from keyedstate.runtime import KeyedBroadcastProcessFunction, KeyedProcessFunction
from keyedstate.state import BroadcastState, OperatorListState, UnionListState, ValueState

USERS = [f"user-{number}" for number in range(30)]
ROWS = "user string, amount long"
RULES = "name string, factor long"


class Rules(KeyedBroadcastProcessFunction):
    """Multiplies amounts by a factor that the broadcast side sets."""

    factors = BroadcastState("factors", types.STRING, types.INT64)
    sum = ValueState("sum", types.INT64, default=0)

    def process_broadcast(self, row, ctx):
        if row.factor is None:
            self.factors.remove(row.name)
        else:
            self.factors.put(row.name, row.factor)
        yield f"instance {ctx.task} of {ctx.parallelism}", row.factor

    def process(self, row, ctx):
        self.sum.update(self.sum.value() + row.amount * (self.factors.get("all") or 1))
        yield ctx.key, self.sum.value()


@pytest.fixture
def rules(harness):
    def make(function=None, **arguments):
        return harness(
            function or Rules(), **{"schema": ROWS, "output": ROWS, "broadcast": RULES, **arguments}
        )

    return make


def test_every_instance_sees_each_row_of_the_broadcast_side(rules):
    """OP-05."""
    harness = rules(parallelism=3)
    assert harness.process_broadcast({"name": "all", "factor": 10}) == [
        ("instance 0 of 3", 10),
        ("instance 1 of 3", 10),
        ("instance 2 of 3", 10),
    ]
    harness.take_outputs()
    assert harness.process_all([(user, 2) for user in USERS]) == [(user, 20) for user in USERS]
    for instance in harness.instances:
        assert dict(instance.function.factors.items()) == {"all": 10}
    assert len(harness.outputs) == len(USERS)
    harness.process_broadcast_all([("all", None), ("other", 5)])
    assert harness.process(("user-0", 2)) == [("user-0", 22)]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2), (3, 3)])
def test_broadcast_state_is_the_same_on_every_instance_after_a_rescale(rules, before, after):
    """OP-05."""
    harness = rules(parallelism=before)
    harness.process_broadcast_all([("all", 3), ("other", 1)])
    harness.process(("ann", 1))
    harness.end_epoch()
    harness.rescale(after)
    for instance in harness.instances:
        assert dict(instance.function.factors.items()) == {"all": 3, "other": 1}
    assert harness.process(("ann", 1)) == [("ann", 6)]


def test_operator_lists_are_redistributed_and_union_lists_given_to_all(rules):
    class Lists(KeyedProcessFunction):
        seen = OperatorListState("seen", types.STRING)
        tasks = UnionListState("tasks", types.INT64)

        def open(self, ctx):
            self.before = list(self.tasks.get())
            self.tasks.update([ctx.task])

        def process(self, row, ctx):
            self.seen.add(ctx.key)

    harness = rules(Lists(), broadcast=None, parallelism=3)
    harness.process_all([(user, 1) for user in USERS])
    harness.rescale(4)
    dealt = [list(instance.function.seen.get()) for instance in harness.instances]
    assert sorted(user for part in dealt for user in part) == sorted(USERS)
    assert all(part for part in dealt)
    assert [instance.function.before for instance in harness.instances] == [[0, 1, 2]] * 4
    snapshot = harness.snapshot()
    one = rules(Lists(), broadcast=None, restore=snapshot)
    assert sorted(one.instances[0].function.seen.get()) == sorted(USERS)


def test_a_function_knows_its_instance(rules):
    class Who(KeyedProcessFunction):
        def process(self, row, ctx):
            yield f"{ctx.task}/{ctx.parallelism}", row.amount

    harness = rules(Who(), broadcast=None, parallelism=2)
    rows = harness.process_all([(user, 1) for user in USERS])
    assert {row.user for row in rows} == {"0/2", "1/2"}


def test_an_error_of_the_broadcast_side_names_its_step(rules):
    class Bad(Rules):
        def process_broadcast(self, row, ctx):
            raise ValueError(f"no rule {row.name}")

    with pytest.raises(UserFunctionError, match=r"no rule all.* Raised in Bad.process_broadcast\(\)"):
        rules(Bad()).process_broadcast(("all", 1))


def test_a_wrong_row_is_refused_before_any_is_processed(rules):
    harness = rules(parallelism=2)
    with pytest.raises(InputRowError, match=r"row 1 .*column 'factor', which takes int64"):
        harness.process_broadcast_all([("all", 1), ("all", "2")])
    assert [dict(instance.function.factors.items()) for instance in harness.instances] == [{}, {}]


def test_columns_of_a_missing_broadcast_side_are_refused(rules):
    with pytest.raises(HarnessSettingError, match="Plain has no broadcast side"):
        rules(type("Plain", (KeyedProcessFunction,), {"process": Rules.process})())
    with pytest.raises(HarnessSchemaError, match=r"'broadcast': .*'factor' has the type 'lng'"):
        rules(broadcast="name string, factor lng")
    with pytest.raises(HarnessSettingError, match="was given no columns"):
        rules(broadcast=None).process_broadcast(("all", 1))
