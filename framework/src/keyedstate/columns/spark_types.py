"""The types that Spark gives columns, and their names: keys hash and states restore by them."""

from __future__ import annotations

import pyarrow as pa

#: Spark has signed numbers only, and none of 16-bit floats.
WIDER_NUMBERS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
#: It has one type of strings, of bytes and of dates, and no column without a type.
_WIDER = {
    **WIDER_NUMBERS,
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}
_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def as_spark_reads(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type of the column that Spark makes of a column of an Arrow type."""
    types = pa.types
    if type_ in _WIDER:
        return _WIDER[type_]
    if types.is_dictionary(type_):
        return as_spark_reads(type_.value_type)
    if types.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_struct(type_):
        return pa.struct([_field(field) for field in type_])
    if types.is_map(type_):
        return pa.map_(as_spark_reads(type_.key_type), as_spark_reads(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(_field(type_.value_field).with_name("element"))
    return type_


def schema_as_spark_reads(schema: pa.Schema) -> pa.Schema:
    """Return the columns that Spark makes of columns with Arrow types."""
    return pa.schema([_field(field) for field in schema])


def batch_as_spark_reads(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the types of a schema of `schema_as_spark_reads`; nanoseconds are truncated."""
    columns = [_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    if pa.types.is_dictionary(column.type):
        # Arrow itself does not decode those of string views, which polars makes of categories.
        return _cast(column.dictionary, type_).take(column.indices)
    # Every other change widens the type, so that nothing else can be lost.
    return column.cast(type_, safe=False)


def spark_name(type_: pa.DataType) -> str:
    """Return the name of a type in Spark's schemas, such as ``bigint``."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in type_)}>"
    return str(type_)


def _field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, as_spark_reads(field.type), field.nullable)
