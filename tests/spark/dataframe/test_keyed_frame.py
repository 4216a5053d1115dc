"""Building a keyed DataFrame: what is refused before any row is read, and how it is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from keyedstate import keyed
from keyedstate.errors import (
    ClassicSparkRequiredError,
    ConfigError,
    FunctionTransportError,
    InvalidFunctionError,
    InvalidOptionError,
    InvalidParallelismError,
    KeyColumnError,
    MissingOptionError,
    MissingUidError,
    OutputSchemaError,
    UnknownBackendError,
    UnknownOptionError,
    UnknownSchemeError,
    UnsafeNameError,
)
from keyedstate.runtime import Context, KeyedProcessFunction

SCHEMA = "k string"


class Echo(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        yield (ctx.key,)


@pytest.fixture(scope="module")
def flights(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [("N1", "JFK", 1)], "tailnum string, `dest.airport` string, Delay long"
    ).withColumns(
        {
            "attributes": f.create_map(f.lit("a"), f.lit(1)),
            "stops": f.array(f.lit("a")),
            "place": f.struct(f.lit(1).alias("x")),
        }
    )


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return spark.readStream.schema("k string, v long").json(str(tmp_path_factory.mktemp("input")))


def test_a_missing_key_column_is_named_with_the_closest_names(flights: DataFrame) -> None:
    with pytest.raises(KeyColumnError) as caught:
        keyed(flights, "tailnumber")
    assert caught.value.column == "tailnumber"
    assert "has no column 'tailnumber'. Did you mean 'tailnum'" in str(caught.value)


def test_a_missing_key_column_that_looks_like_none_is_named_with_all(flights: DataFrame) -> None:
    with pytest.raises(KeyColumnError, match=r"It has the columns tailnum, dest\.airport, Delay"):
        keyed(flights, "zzzzzzzz")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((), "no key column was given"),
        (("tailnum", "tailnum"), "'tailnum' is named twice"),
        (("tailnum", "TAILNUM"), "'tailnum' is named twice"),
        ((["tailnum"], "Delay"), r"given as \['tailnum'\]"),
        ((5,), "given as 5"),
        (("attributes",), "'attributes' has the type map<string,int>"),
        (("stops",), "'stops' has the type array<string>"),
    ],
)
def test_columns_that_cannot_be_keys_are_refused(
    flights: DataFrame, columns: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(KeyColumnError, match=said):
        keyed(flights, *columns)


def test_expressions_that_cannot_be_keys_are_refused(flights: DataFrame) -> None:
    for keys, said in (
        ((f.lower("tailnum").alias("Delay"),), "named 'Delay', as a column of the DataFrame is"),
        ((f.lower("tailnum"), f.lower("tailnum")), r"'lower\(tailnum\)' is named twice"),
        ((f.col("tailnum"), "TAILNUM"), "'tailnum' is named twice"),
        ((f.explode("stops"),), "Spark cannot group by"),
        ((f.sum("Delay"),), "Spark cannot group by"),
        ((f.col("nowhere"),), "Spark cannot group by .*nowhere"),
        ((f.col("*"),), "name each|cannot group"),
        ((f.col("stops"),), r"'stops' has the type array<string>"),
    ):
        with pytest.raises(KeyColumnError, match=said):
            keyed(flights, *keys)


def test_an_ambiguous_key_column_is_refused(flights: DataFrame) -> None:
    with pytest.raises(KeyColumnError, match="has 2 columns 'tailnum'"):
        keyed(flights.select("*", f.lit(1).alias("tailnum")), "tailnum")


def test_a_column_of_our_own_name_is_refused(flights: DataFrame) -> None:
    with pytest.raises(KeyColumnError, match="a name that keyedstate needs for itself"):
        keyed(flights.withColumn("__keyedstate_key_group", f.lit(1)), "tailnum")


def test_names_are_found_without_regard_to_case_and_with_dots_in_them(
    flights: DataFrame, one_backend: str
) -> None:
    out = keyed(flights, "DELAY", config={"backend": one_backend}).process(Echo(), "delay long")
    assert [row.delay for row in out.collect()] == [1]
    out = keyed(flights, "dest.airport", config={"backend": one_backend}).process(Echo(), SCHEMA)
    assert [row.k for row in out.collect()] == ["JFK"]


def test_a_streaming_operator_needs_a_uid(events: DataFrame) -> None:
    with pytest.raises(MissingUidError, match=r"keyed\(df, \.\.\., uid='page-views'\)"):
        keyed(events, "k").process(Echo(), SCHEMA)


@pytest.mark.parametrize("uid", ["", "..", "a/b", "../up", "ü", "x" * 201, "a b"])
def test_a_uid_that_is_no_safe_folder_name_is_refused(
    events: DataFrame, one_backend: str, tmp_path: Path, uid: str
) -> None:
    config = {"checkpoint.dir": str(tmp_path / "state"), "backend": one_backend}
    with pytest.raises(UnsafeNameError):
        keyed(events, "k", uid=uid, config=config).process(Echo(), SCHEMA)
    assert not (tmp_path / "state").exists()


def test_a_streaming_operator_needs_a_checkpoint_folder(events: DataFrame, one_backend: str) -> None:
    with pytest.raises(MissingOptionError) as caught:
        keyed(events, "k", uid="u", config={"backend": one_backend}).process(Echo(), SCHEMA)
    assert caught.value.key == "spark.keyedstate.checkpoint.dir"


def test_a_checkpoint_folder_on_no_known_file_system_is_refused(events: DataFrame, one_backend: str) -> None:
    config = {"checkpoint.dir": "s4://bucket/state", "backend": one_backend}
    with pytest.raises(UnknownSchemeError, match="s4"):
        keyed(events, "k", uid="u", config=config).process(Echo(), SCHEMA)


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"backend": "heap-cwo"}, UnknownBackendError, "heap-cow"),
        ({"bakend": "heap-cow"}, UnknownOptionError, "'backend'"),
        ({"parallelism": 0}, InvalidOptionError, "a whole number from 1 to 32768"),
        ({"parallelism": 9, "max-parallelism": 8}, InvalidParallelismError, "the max parallelism 8"),
        ({"max-parallelism": 40_000}, InvalidOptionError, "a whole number from 1 to 32768"),
    ],
)
def test_a_wrong_option_is_refused_when_the_operator_is_built(
    flights: DataFrame, config: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        keyed(flights, "tailnum", config=config).process(Echo(), SCHEMA)


def test_a_misspelt_key_of_sparks_configuration_is_refused(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.keyedstate.checkpoint.directory", "/tmp")
    with pytest.raises(UnknownOptionError) as caught:
        keyed(session.range(3), "id").process(Echo(), "k long")
    assert caught.value.key == "spark.keyedstate.checkpoint.directory"
    assert "'spark.keyedstate.checkpoint.dir'" in str(caught.value)


def test_explicit_options_win_over_spark_and_spark_over_the_environment(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(session: SparkSession, config: dict[str, object]) -> str:
        with pytest.raises(UnknownBackendError) as caught:
            keyed(session.range(3), "id", config=config).process(Echo(), "k long")
        return caught.value.name

    monkeypatch.setenv("KEYEDSTATE_BACKEND", "from-environment")
    session = spark.newSession()
    assert error(session, {}) == "from-environment"
    session.conf.set("spark.keyedstate.backend", "from-spark")
    assert error(session, {}) == "from-spark"
    assert error(session, {"backend": "from-call"}) == "from-call"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("k strnig", "strnig"),
        ("k string, k long", "the column 'k' appears 2 times"),
        ("i interval year", "interval year"),
        (StructType([]), "it has no column"),
        (["k"], "it is a list"),
        (IntegerType(), "it is a IntegerType"),
    ],
)
def test_an_output_schema_that_cannot_be_used_is_refused(flights: DataFrame, schema: Any, said: str) -> None:
    with pytest.raises(OutputSchemaError) as caught:
        keyed(flights, "tailnum").process(Echo(), schema)
    assert said.lower() in str(caught.value).lower()
    assert "'key string, views long'" in str(caught.value)


def test_a_struct_type_declares_the_output_too(flights: DataFrame, one_backend: str) -> None:
    schema = StructType([StructField("delay", IntegerType(), nullable=False)])

    class Delay(KeyedProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[dict[str, int]]:
            yield {"delay": row.Delay}

    out = keyed(flights, "tailnum", config={"backend": one_backend}).process(Delay(), schema)
    assert out.schema.simpleString() == "struct<delay:int>"
    assert [row.delay for row in out.collect()] == [1]


@pytest.mark.parametrize("function", [Echo, lambda row: row, None])
def test_what_is_no_process_function_is_refused(flights: DataFrame, function: Any) -> None:
    with pytest.raises(InvalidFunctionError, match=r"not a KeyedProcessFunction|did you forget \(\)"):
        keyed(flights, "tailnum").process(function, SCHEMA)


def test_a_function_that_could_only_fail_in_a_task_is_refused_on_the_driver(flights: DataFrame) -> None:
    class Short(Echo):
        def process(self, row: Any) -> Any:  # type: ignore[override]
            yield row

    with pytest.raises(InvalidFunctionError, match=r"process\(self, row, ctx\)"):
        keyed(flights, "tailnum").process(Short(), SCHEMA)


def test_a_prefix_of_an_explicit_option_is_named_in_one_line(flights: DataFrame) -> None:
    config = {"spark.keyedstate.checkpoint.dir": "/nowhere"}
    with pytest.raises(UnknownOptionError, match=r"Give it as 'checkpoint\.dir'\.$") as caught:
        keyed(flights, "tailnum", config=config).process(Echo(), SCHEMA)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 150


def test_a_queue_of_timers_that_the_backend_lacks_is_refused_on_the_driver(flights: DataFrame) -> None:
    config = {"backend": "heap-cow", "timers.queue": "ordered"}
    with pytest.raises(ConfigError, match="heap-cow"):
        keyed(flights, "tailnum", config=config).process(Echo(), SCHEMA)


def test_a_function_that_cannot_be_pickled_is_refused_with_the_way_out(flights: DataFrame) -> None:
    function = Echo()
    function.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(FunctionTransportError, match="Make in open\\(\\) what cannot be pickled") as caught:
        keyed(flights, "tailnum").process(function, SCHEMA)
    assert (caught.value.function, caught.value.step) == ("Echo", "pack")


def test_a_dataframe_of_spark_connect_before_pyspark_4_is_refused() -> None:
    # From PySpark 4 on its class is one of `pyspark.sql.DataFrame`.
    remote = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(ClassicSparkRequiredError, match=r"Use PySpark 4\. A classic session"):
        keyed(remote, "k")
