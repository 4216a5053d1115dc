"""Our Murmur3 against Spark's own ``hash``: random values and awkward ones of every type that keys may have.

The values reach Spark as one Parquet file and its hashes come back as another, so that no conversion through
Python is in between and one job answers for all types.
"""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyedstate.murmur3 import hash_columns, hash_value, key_groups

pytestmark = pytest.mark.spark

ROWS = 4_000
AWKWARD_TEXT = [
    "",
    "a",
    "ab",
    "abc",
    "abcd",
    "\x00",
    "\x7f\x80",
    "é",
    "\ud7ff\ue000",  # the neighbours of the surrogate range
    "\uffff",
    "\U00010000\U0010ffff",  # pairs of surrogates in Java
    "👩‍👩‍👧",
    "a\u0301 is not á",
    " ",
    "x" * 255,
    "ж" * 300_000,
]
AWKWARD_FLOATS = {
    # -0.0, both infinities, quiet and signalling NaNs of both signs, subnormals, the largest number.
    "<u4": [
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00000,
        0x7F800001,
        0x7FC12345,
        1,
        0x7F7FFFFF,
    ],
    "<u8": [
        0,
        1 << 63,
        0x7FF0 << 48,
        0xFFF0 << 48,
        0x7FF8 << 48,
        0xFFF8 << 48,
        (0x7FF0 << 48) + 1,
        (0x7FF8 << 48) + 12345,
        1,
        (0x7FF0 << 48) - 1,
    ],
}


def with_nulls(generator: np.random.Generator, values: list, arrow_type: pa.DataType) -> pa.Array:
    """Replace a tenth of the values by null, the awkward ones at the front excepted."""
    missing = generator.random(len(values)) < 0.1
    missing[:100] = False
    return pa.array(
        [None if gone else value for gone, value in zip(missing, values, strict=True)], type=arrow_type
    )


def integers(generator: np.random.Generator, bits: int) -> pa.Array:
    """Numbers that need up to `bits` bits, in the smallest Arrow type that holds them."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    values = [0, 1, -1, low, high, low + 1, high - 1]
    values += generator.integers(low, high, ROWS - len(values), endpoint=True).tolist()
    arrow_type = next(
        each for each in (pa.int8(), pa.int16(), pa.int32(), pa.int64()) if each.bit_width >= bits
    )
    return with_nulls(generator, values, arrow_type)


def floats(generator: np.random.Generator, dtype: str) -> pa.Array:
    awkward = AWKWARD_FLOATS[dtype]
    random_bits = generator.integers(0, np.iinfo(dtype).max, ROWS - len(awkward), endpoint=True, dtype=dtype)
    bits = np.concatenate([np.array(awkward, dtype=dtype), random_bits])
    values = pa.array(bits.view(dtype.replace("u", "f")))
    assert np.array_equal(np.frombuffer(values.buffers()[1], dtype=dtype), bits), (
        "the NaNs must arrive as they are"
    )
    return values


def texts(generator: np.random.Generator) -> pa.Array:
    values = list(AWKWARD_TEXT)
    # Ranges of one to four bytes in UTF-8, without the surrogates, which are no characters.
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    while len(values) < ROWS:
        low, high = planes[generator.integers(len(planes))]
        values.append("".join(map(chr, generator.integers(low, high, generator.integers(0, 40)))))
    return with_nulls(generator, values, pa.string())


def binaries(generator: np.random.Generator) -> pa.Array:
    values = [b"", b"\x00", b"\xff", b"\x80\x7f", b"\xff" * 7, b"\x00" * 8, bytes(range(256))]
    values += [generator.bytes(generator.integers(0, 70)) for _ in range(ROWS - len(values))]
    return with_nulls(generator, values, pa.binary())


def decimals(generator: np.random.Generator, precision: int, scale: int) -> pa.Array:
    unscaled = [0, 1, -1, 10**precision - 1, 1 - 10**precision]
    # Values at which the number of bytes changes.
    for bits in range(7, 127, 8):
        unscaled += [(1 << bits) - 1, 1 << bits, -(1 << bits), -(1 << bits) - 1]
    unscaled = [value for value in unscaled if abs(value) < 10**precision]
    while len(unscaled) < ROWS:
        digits = int(generator.integers(1, precision, endpoint=True))
        value = int("".join(map(str, generator.integers(0, 10, digits))))
        unscaled.append(value if generator.random() < 0.5 else -value)
    context = decimal.Context(prec=precision)
    values = [decimal.Decimal(value).scaleb(-scale, context) for value in unscaled]
    return with_nulls(generator, values, pa.decimal128(precision, scale))


def structs(generator: np.random.Generator) -> pa.Array:
    numbers, words = integers(generator, 32).to_pylist(), texts(generator).to_pylist()
    values = [{"number": number, "text": text} for number, text in zip(numbers, words, strict=True)]
    return with_nulls(generator, values, pa.struct({"number": pa.int32(), "text": pa.string()}))


def arrays(generator: np.random.Generator) -> pa.Array:
    words = iter([*texts(generator).to_pylist(), *texts(generator).to_pylist()][len(AWKWARD_TEXT) :])
    lengths = [2_000, *generator.integers(0, 3, ROWS - 1).tolist()]
    values = [[next(words) for _ in range(length)] for length in lengths]
    return with_nulls(generator, values, pa.list_(pa.string()))


def arrays_of_structs(generator: np.random.Generator) -> pa.Array:
    lengths = generator.integers(0, 4, ROWS).tolist()
    values = [[{"at": length * at, "tags": [at, None]} for at in range(length)] for length in lengths]
    return with_nulls(
        generator, values, pa.list_(pa.struct({"at": pa.int64(), "tags": pa.list_(pa.int16())}))
    )


KEY_COLUMNS = {
    "boolean": lambda generator: with_nulls(generator, (generator.random(ROWS) < 0.5).tolist(), pa.bool_()),
    "byte": lambda generator: integers(generator, 8),
    "short": lambda generator: integers(generator, 16),
    "int": lambda generator: integers(generator, 32),
    "long": lambda generator: integers(generator, 64),
    "float": lambda generator: floats(generator, "<u4"),
    "double": lambda generator: floats(generator, "<u8"),
    "string": texts,
    "binary": binaries,
    "date": lambda generator: integers(generator, 32).cast(pa.date32()),
    "timestamp": lambda generator: integers(generator, 64).cast(pa.timestamp("us", "UTC")),
    "timestamp_ntz": lambda generator: integers(generator, 64).cast(pa.timestamp("us")),
    # Python's dates end with the year 9999; the columns before this go far beyond.
    "date_of_python": lambda generator: integers(generator, 20).cast(pa.date32()),
    "timestamp_of_python": lambda generator: integers(generator, 56).cast(pa.timestamp("us", "UTC")),
    "timestamp_ntz_of_python": lambda generator: integers(generator, 56).cast(pa.timestamp("us")),
    "decimal_1": lambda generator: decimals(generator, 1, 0),
    "decimal_9": lambda generator: decimals(generator, 9, 4),
    "decimal_18": lambda generator: decimals(generator, 18, 2),
    "decimal_19": lambda generator: decimals(generator, 19, 2),
    "decimal_28": lambda generator: decimals(generator, 28, 28),
    "decimal_38": lambda generator: decimals(generator, 38, 10),
    "only_null": lambda generator: pa.nulls(ROWS, pa.string()),
    "struct": structs,
    "array": arrays,
    "array_of_structs": arrays_of_structs,
}
OUTSIDE_PYTHON = ("date", "timestamp", "timestamp_ntz")
SEVERAL_COLUMNS = [
    ("int", "string"),
    ("string", "int"),
    ("string", "string"),
    ("only_null", "long", "only_null"),
    ("decimal_38", "float", "binary", "date", "struct", "array", "timestamp", "boolean"),
]
KEY_GROUPS_OF = ["only_null", "string", " ".join(SEVERAL_COLUMNS[0])]
MAX_PARALLELISM = 1_000


@pytest.fixture(scope="module")
def hashed_by_spark(spark, tmp_path_factory):
    """The key columns, and Spark's hash of each column and of each combination by its name."""
    folder = tmp_path_factory.mktemp("murmur3")
    generator = np.random.default_rng(20_240_607)
    columns = {name: build(generator) for name, build in KEY_COLUMNS.items()}
    pq.write_table(pa.table({"row": np.arange(ROWS), **columns}), folder / "keys.parquet")
    # Dates and timestamps as they are: no rebasing of those before 1582.
    keys = spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(str(folder / "keys.parquet"))
    several = {" ".join(names): names for names in [*((name,) for name in columns), *SEVERAL_COLUMNS]}
    key = {name: f"hash({', '.join(names)})" for name, names in several.items()}
    keys.selectExpr(
        "row",
        *(f"{key[name]} AS `hash {name}`" for name in several),
        *(f"pmod({key[name]}, {MAX_PARALLELISM}) AS `group {name}`" for name in KEY_GROUPS_OF),
    ).write.parquet(str(folder / "hashes"))
    answer = pq.read_table(folder / "hashes").sort_by("row")
    assert answer.num_rows == ROWS
    return columns, {name: answer[name].to_numpy() for name in answer.column_names}


def assert_same(ours: np.ndarray, sparks: np.ndarray, columns: list[pa.Array]) -> None:
    different = np.flatnonzero(ours != sparks)
    assert not len(different), [
        (row, [column[int(row)] for column in columns], ours[row], sparks[row])
        for row in different[:5].tolist()
    ]


@pytest.mark.parametrize("name", [*KEY_COLUMNS, *(" ".join(names) for names in SEVERAL_COLUMNS)])
def test_the_hashes_of_columns_equal_sparks(hashed_by_spark, name):
    columns, answer = hashed_by_spark
    chosen = [columns[each] for each in name.split()]
    assert_same(hash_columns(chosen), answer[f"hash {name}"], chosen)


@pytest.mark.parametrize("name", KEY_GROUPS_OF)
def test_key_groups_equal_sparks_pmod_of_its_hash(hashed_by_spark, name):
    columns, answer = hashed_by_spark
    chosen = [columns[each] for each in name.split()]
    assert_same(key_groups(chosen, MAX_PARALLELISM), answer[f"group {name}"], chosen)


@pytest.mark.parametrize("name", [name for name in KEY_COLUMNS if name not in OUTSIDE_PYTHON])
def test_the_hash_of_one_python_value_equals_sparks(hashed_by_spark, name):
    columns, answer = hashed_by_spark
    column = columns[name][:500]
    ours = np.array([hash_value(value, column.type) for value in column.to_pylist()])
    assert_same(ours, answer[f"hash {name}"][:500], [column])


def test_intervals_hash_as_spark_hashes_them(spark):
    rows = spark.sql(
        "SELECT day, micros, hash(make_dt_interval(day, 0, 0, micros / 1000000)) AS h FROM "
        "(SELECT cast(id AS int) - 50 AS day, cast(hash(id) AS decimal(18, 6)) AS micros FROM range(100))"
    ).collect()
    spans = pa.array([row.day * 86_400_000_000 + int(row.micros) for row in rows]).cast(pa.duration("us"))
    assert hash_columns([spans]).tolist() == [row.h for row in rows]
    assert [hash_value(span, spans.type) for span in spans.to_pylist()] == [row.h for row in rows]


def test_times_of_day_hash_as_spark_hashes_them(spark):
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        pytest.skip(f"Spark {spark.version} has no type for the time of day")
    values = [
        datetime.time(),
        datetime.time.max,
        datetime.time(12, 34, 56, 789_000),
        datetime.time(0, 0, 0, 1),
    ]
    hashes = ", ".join(f"hash(TIME'{value}')" for value in values)
    expected = list(spark.sql(f"SELECT {hashes}").first())
    times = pa.array(values, type=pa.time64("us"))
    assert hash_columns([times]).tolist() == expected
    assert [hash_value(time, times.type) for time in times.to_pylist()] == expected


def test_spark_refuses_maps_too(spark):
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="HASH_MAP_TYPE"):
        spark.sql("SELECT hash(map(1, 2))")
