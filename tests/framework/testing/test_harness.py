"""The harness: what a test of a process function gives, and what it gets to see."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import (
    FunctionTransportError,
    GenericTypeForbiddenError,
    HarnessClosedError,
    HarnessSettingError,
    InvalidFunctionError,
    InvalidParallelismError,
    OutputTypeError,
    StateNotRegisteredError,
    UnknownBackendError,
    UnknownOptionError,
    UserFunctionError,
    ValueTypeError,
)
from keyedstate.keygroups import operator_index_for_key_group
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ListState, MapState, ReducingState, ValueState
from keyedstate.testing import Harness

ROWS = "user string, page string, seconds long"
VIEWS = "user string, views long, spent long"


class PageViews(KeyedProcessFunction):
    """Counts the views of each user, and the seconds on each page."""

    views = ValueState("views", types.INT64, default=0)
    seconds = MapState("seconds", types.STRING, types.INT64)
    pages = ListState("pages", types.STRING)
    total = ReducingState("total", lambda old, new: old + new, types.INT64)

    def process(self, row, ctx):
        self.views.update(self.views.value() + 1)
        spent = (self.seconds.get(row.page) or 0) + row.seconds
        self.seconds.put(row.page, spent)
        self.pages.add(row.page)
        self.total.add(row.seconds)
        yield ctx.key, self.views.value(), spent


class Lifecycle(KeyedProcessFunction):
    """Notes on itself what it was called for, and tells it in its output: key, epoch, notes."""

    def open(self, ctx):
        self.notes = [f"open {ctx.epoch}"]

    def process(self, row, ctx):
        self.notes.append("process")
        yield ctx.key, ctx.epoch, ", ".join(self.notes)

    def close(self):
        self.notes.append("close")


USERS = [f"user-{number}" for number in range(40)]


@pytest.fixture
def page_views(harness):
    def make(**arguments: Any) -> Harness:
        return harness(PageViews(), schema=ROWS, output=VIEWS, **arguments)

    return make


# -- rows and outputs ----------------------------------------------------------------------------------


def test_rows_are_dicts_tuples_or_lists_and_outputs_are_named_rows(page_views):
    views = page_views()
    assert views.process({"seconds": 3, "user": "ann", "page": "home"}) == [("ann", 1, 3)]
    assert views.process(("ann", "home", 4)) == [("ann", 2, 7)]
    (row,) = views.process(["bob", "home", 1])
    assert (row.user, row.views, row.as_dict()) == ("bob", 1, {"user": "bob", "views": 1, "spent": 1})


def test_outputs_are_collected_until_they_are_taken(page_views):
    views = page_views()
    views.process(("ann", "home", 1))
    views.process_all([("bob", "home", 2), ("ann", "home", 3)])
    assert views.outputs == [("ann", 1, 1), ("bob", 1, 2), ("ann", 2, 4)]
    views.outputs.clear()
    assert views.take_outputs() == [("ann", 1, 1), ("bob", 1, 2), ("ann", 2, 4)]
    assert views.outputs == views.take_outputs() == []


def test_no_rows_give_no_outputs(page_views):
    assert page_views().process_all([]) == []
    assert page_views(parallelism=4).process_all(iter(())) == []


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 128])
def test_outputs_are_in_the_order_of_the_rows_whatever_the_parallelism(page_views, parallelism):
    rows = [(user, "home", number) for number in range(3) for user in USERS]
    views = page_views(parallelism=parallelism)
    assert [(row.user, row.views) for row in views.process_all(rows)] == [
        (user, number + 1) for number in range(3) for user in USERS
    ]
    assert views.num_entries("views") == len(USERS)


def test_each_instance_owns_a_contiguous_range_and_gets_only_its_keys(page_views):
    """The key groups of Spark's hash, divided by Flink's formulas."""
    views = page_views(parallelism=3, max_parallelism=16)
    views.process_all([(user, "home", 1) for user in USERS])
    assert [(i.key_groups.start, i.key_groups.end) for i in views.instances] == [(0, 5), (6, 10), (11, 15)]
    for index, instance in enumerate(views.instances):
        keys = list(instance.backend.get_keys("views"))
        assert keys
        _, groups = instance.backend.current.locate(keys)
        assert {operator_index_for_key_group(group, 3, 16) for group in groups} == {index}


@pytest.mark.parametrize(
    ("schema", "keys"),
    [
        ("user string", ["a", None, ""]),
        ("user long", [2**63 - 1, -(2**63), None]),
        ("user double", [math.nan, 0.0, None]),
        ("user timestamp", [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), None]),
        ("user decimal(38, 0)", [None]),
        ("user struct<a: long, b: string>", [(1, "x"), (None, None), None]),
    ],
    ids=str,
)
def test_keys_of_any_type_and_null_are_keys(harness, schema, keys):
    counts = harness(Counts(), schema=schema, output=f"{schema}, n long", parallelism=5)
    for number in (1, 2):
        assert [row.n for row in counts.process_all([(key,) for key in keys])] == [number] * len(keys)
    for key in keys:
        assert counts.state("n", key).value() == 2


class Counts(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        key = ctx.key if isinstance(ctx.key, tuple) and len(row) > 1 else (ctx.key,)
        yield *key, self.n.value()


def test_every_nan_is_one_key_and_negative_zero_is_zero(harness):
    counts = harness(Counts(), schema="user double", output="user double, n long")
    rows = [(math.nan,), (-math.nan,), (0.0,), (-0.0,)]
    assert [row.n for row in counts.process_all(rows)] == [1, 2, 1, 2]
    assert counts.state("n", -0.0).value() == counts.state("n", -math.nan).value() == 2


def test_several_key_columns_make_a_tuple_and_one_its_value(harness):
    schema = "user string, day int"
    both = harness(Counts(), key=["user", "day"], schema=schema, output=f"{schema}, n long", parallelism=3)
    both.process_all([("ann", 1), ("ann", 2), ("ann", 1), (None, 1)])
    assert sorted(both.keys("n"), key=str) == [("ann", 1), ("ann", 2), (None, 1)]
    assert both.state(Counts.n, ("ann", 1)).value() == 2
    one = harness(Counts(), key=["user"], schema="user string", output="user string, n long")
    one.process(("ann",))
    assert one.keys("n") == ["ann"]


# -- state ---------------------------------------------------------------------------------------------


def test_state_of_every_kind_is_read_by_key_across_instances(page_views):
    views = page_views(parallelism=4)
    views.process_all([("ann", "home", 1), ("bob", "shop", 2), ("ann", "shop", 5)])
    assert views.state(PageViews.views, "ann").value() == 2
    assert dict(views.state(PageViews.seconds, "ann").items()) == {"home": 1, "shop": 5}
    assert list(views.state("pages", "ann").get()) == ["home", "shop"]
    assert views.state("total", "bob").get() == 2
    assert views.state("views", "nobody").value() == 0
    assert sorted(views.keys("pages")) == ["ann", "bob"]
    assert views.num_entries("pages") == views.num_entries(PageViews.views) == 2
    assert views.num_entries() == sum(
        views.num_entries(name) for name in ("views", "seconds", "pages", "total")
    )


def test_an_accessor_stays_at_its_key_while_rows_and_other_accessors_continue(page_views):
    views = page_views()
    views.process_all([("ann", "home", 1), ("ann", "home", 1), ("bob", "home", 1)])
    ann, bob = views.state(PageViews.views, "ann"), views.state(PageViews.views, "bob")
    assert (ann.value(), bob.value(), ann.value()) == (2, 1, 2)
    views.process(("cyd", "home", 1))
    views.process(("ann", "home", 1))
    assert (ann.value(), bob.value()) == (3, 1)


def test_state_that_a_test_writes_is_what_the_function_finds(page_views):
    views = page_views(parallelism=2)
    views.state(PageViews.views, "ann").update(41)
    views.state(PageViews.seconds, "ann").put("home", 100)
    assert views.process(("ann", "home", 1)) == [("ann", 42, 101)]
    views.state(PageViews.views, "ann").clear()
    assert views.process(("ann", "home", 1)) == [("ann", 1, 102)]


def test_reading_state_does_not_change_the_key_that_the_function_works_on(harness):
    class Late(KeyedProcessFunction):
        n = ValueState("n", types.INT64, default=0)

        def process(self, row, ctx):
            self.n.update(self.n.value() + 1)
            yield ctx.key, self.n.value()

    late = harness(Late(), schema="user string", output="user string, n long")
    late.process(("ann",))
    late.state("n", "bob").update(7)
    assert late.instances[0].function.n.value() == 1


def test_a_namespace_is_given_with_the_key(harness):
    class Windowed(KeyedProcessFunction):
        def open(self, ctx):
            self.count = self.backend_of(ctx).get_state(ListState("events", types.INT64), 0, types.INT64)

        def backend_of(self, ctx):
            return ctx._backend

        def process(self, row, ctx):
            self.count.set_namespace(row.window)
            self.count.add(row.value)

    rows = [("ann", 10, 1), ("ann", 20, 2), ("ann", 10, 3), ("bob", 10, 4)]
    windowed = harness(
        Windowed(), schema="user string, window long, value long", output="n long", parallelism=3
    )
    windowed.process_all(rows)
    assert list(windowed.state("events", "ann", 10).get()) == [1, 3]
    assert list(windowed.state("events", "ann", namespace=20).get()) == [2]
    assert sorted(windowed.keys("events", 10)) == ["ann", "bob"]
    assert windowed.keys("events", 20) == ["ann"]


def test_a_state_that_is_not_registered_is_named_with_those_that_are(page_views):
    views = page_views()
    with pytest.raises(
        StateNotRegisteredError, match=r"'view' is not registered\. Did you mean 'views'"
    ) as caught:
        views.state("view", "ann")
    assert caught.value.registered == ("pages", "seconds", "total", "views")
    assert views.keys("view") == []
    assert views.num_entries("view") == 0


def test_a_key_of_another_type_is_refused(page_views):
    with pytest.raises(ValueTypeError):
        page_views().state("views", 7)


# -- the function's life -------------------------------------------------------------------------------


def test_each_epoch_copies_the_function_and_keeps_the_state(harness):
    function = Lifecycle()
    life = harness(function, schema="user string", output="user string, epoch long, notes string")
    assert life.process(("ann",)) == [("ann", 0, "open 0, process")]
    first = life.instances[0].function
    life.end_epoch()
    assert first.notes == ["open 0", "process", "close"]
    assert life.epoch == 1
    assert life.process(("ann",)) == [("ann", 1, "open 1, process")]
    assert not hasattr(function, "notes")


def test_state_continues_over_epochs(page_views):
    views = page_views(parallelism=2)
    for number in range(1, 4):
        assert views.process(("ann", "home", 1)) == [("ann", number, number)]
        views.end_epoch()
    assert (views.epoch, views.state("views", "ann").value()) == (3, 3)


def test_every_instance_has_a_function_of_its_own(harness):
    life = harness(
        Lifecycle(), schema="user string", output="user string, epoch long, notes string", parallelism=3
    )
    life.process_all([(user,) for user in USERS])
    processed = [instance.function.notes.count("process") for instance in life.instances]
    assert sum(processed) == len(USERS) and all(processed)


def test_the_function_is_closed_with_the_harness_once(harness):
    life = harness(
        Lifecycle(), schema="user string", output="user string, epoch long, notes string", parallelism=2
    )
    functions = [instance.function for instance in life.instances]
    life.close()
    life.close()
    assert [function.notes for function in functions] == [["open 0", "close"]] * 2


def test_a_closed_harness_says_so_and_still_has_its_outputs(page_views):
    with page_views() as views:
        views.process(("ann", "home", 1))
        snapshot = views.snapshot()
    for call in (
        lambda: views.process(("ann", "home", 1)),
        lambda: views.state("views", "ann"),
        lambda: views.keys("views"),
        views.num_entries,
        views.snapshot,
        views.end_epoch,
        lambda: views.restore(snapshot),
        lambda: views.rescale(2),
    ):
        with pytest.raises(HarnessClosedError, match="is closed"):
            call()
    assert views.outputs == [("ann", 1, 1)]


# -- errors of the function ----------------------------------------------------------------------------


class Fragile(KeyedProcessFunction):
    """Fails in the step that a row or an attribute names."""

    seen = ValueState("seen", types.INT64, default=0)

    def __init__(self, step: str = "") -> None:
        self.step = step

    def open(self, ctx):
        if self.step == "open":
            raise OSError("no such database")

    def process(self, row, ctx):
        self.seen.update(self.seen.value() + 1)
        if row.n < 0:
            raise ValueError(f"bad n {row.n}")
        yield ctx.key, row.n

    def close(self):
        if self.step == "close":
            raise OSError("the database is gone")


SCHEMA = "user string, n long"


def test_an_error_of_a_function_has_key_epoch_and_cause(harness):
    fragile = harness(Fragile(), schema=SCHEMA, output=SCHEMA)
    fragile.end_epoch()
    with pytest.raises(
        UserFunctionError, match=r"ValueError.* Raised in Fragile.process\(\) .*'bob' in epoch 1"
    ) as caught:
        fragile.process_all([("ann", 1), ("bob", -1)])
    assert (caught.value.key, caught.value.epoch) == ("bob", 1)
    assert isinstance(caught.value.__cause__, ValueError)
    assert fragile.outputs == []
    assert fragile.process(("bob", 2)) == [("bob", 2)]
    assert fragile.state("seen", "bob").value() == 2


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_error_in_open_leaves_nothing_open(harness, parallelism):
    with pytest.raises(UserFunctionError, match=r"OSError: no such database. Raised in Fragile.open\(\)"):
        harness(Fragile("open"), schema=SCHEMA, output=SCHEMA, parallelism=parallelism)


def test_an_error_in_open_closes_all_opened_functions(harness):
    calls = []

    class Counts(Fragile):
        def open(self, ctx):
            calls.append(f"open {ctx.task}")
            if ctx.task == 1:
                raise OSError("no such database")

        def close(self):
            calls.append("close")

    with pytest.raises(UserFunctionError, match="no such database"):
        harness(Counts(), schema=SCHEMA, output=SCHEMA, parallelism=3)
    assert calls == ["open 0", "open 1", "close", "close"]


def test_an_error_in_close_is_raised_after_every_instance_is_closed(backend_name):
    fragile = Harness(
        Fragile("close"), key="user", schema=SCHEMA, output=SCHEMA, backend=backend_name, parallelism=3
    )
    with pytest.raises(UserFunctionError, match=r"OSError.* Raised in Fragile.close\(\)"):
        fragile.close()
    fragile.close()
    ended = Harness(Fragile("close"), key="user", schema=SCHEMA, output=SCHEMA, backend=backend_name)
    with pytest.raises(UserFunctionError, match="the database is gone"):
        ended.end_epoch()
    with pytest.raises(HarnessClosedError, match=r"end_epoch\(\) failed"):
        ended.process(("ann", 1))


def test_the_error_of_a_test_is_not_hidden_by_one_of_close(backend_name):
    fragile = Harness(Fragile("close"), key="user", schema=SCHEMA, output=SCHEMA, backend=backend_name)
    with pytest.raises(AssertionError, match="the test's own"), fragile:
        raise AssertionError("the test's own")


def test_a_wrong_output_names_column_type_and_key(harness):
    fragile = harness(Fragile(), schema=SCHEMA, output="user string, n string")
    with pytest.raises(OutputTypeError, match=r"'n'.*string.*'ann'.*int 1"):
        fragile.process(("ann", 1))


# -- what a harness is made with -----------------------------------------------------------------------


def test_something_else_than_a_function_is_refused(harness):
    for wrong in (PageViews, lambda row: row, None):
        with pytest.raises(InvalidFunctionError, match=r"not a KeyedProcessFunction|did you forget \(\)"):
            harness(wrong, schema=ROWS, output=VIEWS)


def test_a_function_that_could_not_be_sent_to_a_task_is_refused(harness):
    function = PageViews()
    function.connection = (number for number in ())
    with pytest.raises(
        FunctionTransportError, match=r"PageViews cannot be sent to Spark's tasks.*open\(\)"
    ) as caught:
        harness(function, schema=ROWS, output=VIEWS)
    assert isinstance(caught.value.__cause__, TypeError)


def test_attributes_of_a_function_are_copied_and_modules_among_them_are_not(harness):
    function = PageViews()
    function.math, function.names = math, ["ann"]
    first, second = (
        instance.function
        for instance in harness(function, schema=ROWS, output=VIEWS, parallelism=2).instances
    )
    first.names.append("bob")
    assert (first.math, second.names, function.names) == (math, ["ann"], ["ann"])


def test_the_variables_of_a_test_are_those_that_its_function_sees(harness):
    seen = []

    class Sees(PageViews):
        def process(self, row, ctx):
            seen.append((ctx.task, row.user))

    views = harness(Sees(), schema=ROWS, output=VIEWS, parallelism=2)
    views.process_all([("ann", "home", 1), ("bob", "home", 1)])
    views.end_epoch()
    views.process(("ann", "shop", 1))
    assert [user for _, user in seen] == ["ann", "bob", "ann"]


def test_the_arguments_of_the_function_reach_every_copy(harness):
    fragile = harness(Fragile("nowhere"), schema=SCHEMA, output=SCHEMA, parallelism=2)
    fragile.end_epoch()
    assert [instance.function.step for instance in fragile.instances] == ["nowhere"] * 2


def test_an_unknown_backend_or_option_is_refused_by_name(harness):
    with pytest.raises(UnknownBackendError, match="nested-mop"):
        harness(PageViews(), schema=ROWS, output=VIEWS, backend="nested-mop")
    with pytest.raises(UnknownOptionError, match="no-such"):
        harness(PageViews(), schema=ROWS, output=VIEWS, options={"heap-cow.no-such": 1})


def test_options_reach_the_backend(harness, backend_name):
    forbid = {"types.generic": "forbid"}

    class Pickles(PageViews):
        anything = ValueState("anything", types.pickled())

    with pytest.raises(GenericTypeForbiddenError, match="anything"):
        harness(Pickles(), schema=ROWS, output=VIEWS, options=forbid)
    if backend_name == "heap-cow":
        pure = harness(PageViews(), schema=ROWS, output=VIEWS, options={"heap-cow.compiled": "never"})
        assert pure.process(("ann", "home", 1)) == [("ann", 1, 1)]


@pytest.mark.parametrize(
    ("option", "parameter"),
    [("backend", "backend"), ("parallelism", "parallelism"), ("max-parallelism", "max_parallelism")],
)
def test_an_option_that_is_a_parameter_is_refused(harness, option, parameter):
    with pytest.raises(HarnessSettingError, match=f"Give it as {parameter}="):
        harness(PageViews(), schema=ROWS, output=VIEWS, options={option: 4})


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 8), (9, 8), (129, None)])
def test_an_impossible_parallelism_is_refused(harness, parallelism, max_parallelism):
    with pytest.raises(InvalidParallelismError):
        harness(
            PageViews(), schema=ROWS, output=VIEWS, parallelism=parallelism, max_parallelism=max_parallelism
        )


def test_the_environment_is_not_read(harness, monkeypatch):
    monkeypatch.setenv("KEYEDSTATE_TYPES_GENERIC", "nonsense")
    harness(PageViews(), schema=ROWS, output=VIEWS)
