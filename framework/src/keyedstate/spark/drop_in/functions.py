"""Processors as functions of keyedstate, which a test harness runs without Spark."""

from __future__ import annotations

import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from keyedstate.columns.declared import arrow_schema
from keyedstate.runtime import KeyedFunction
from keyedstate.spark.drop_in.frames import PandasProcessor
from keyedstate.spark.drop_in.handle import declared_schemas, time_domain_of
from keyedstate.spark.drop_in.rows import RowProcessor

#: Spark's default of ``spark.sql.execution.arrow.maxRecordsPerBatch``.
_MAX_RECORDS = 10_000
_MAX_BYTES = 2**31 - 1


def keyed_function(
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    timeMode: str = "none",
    *,
    frames: bool = False,
) -> KeyedFunction:
    """Return a processor as a function for `keyedstate.testing.Harness`, which needs no Spark and no Java.

    A call of the harness's ``process_all`` is a micro-batch: each key gets its rows at once.  Due timers fire
    when the test moves time, and at the end of an epoch.

    Parameters
    ----------
    statefulProcessor, outputStructType, timeMode
        As Spark's ``transformWithState`` takes them.
    frames : bool, default False
        Whether the processor is one for ``transformWithStateInPandas``.

    Raises
    ------
    IllegalArgumentException
        For an unknown time mode.
    OutputSchemaError
    PySparkRuntimeError
        For states that Spark refuses.
    """
    domain = time_domain_of(timeMode)
    on_driver = cloudpickle.loads(cloudpickle.dumps(statefulProcessor))
    schemas = declared_schemas(on_driver.init, domain, _parse)
    on_driver.close()
    output = arrow_schema(outputStructType)
    if not frames:
        return RowProcessor(statefulProcessor, domain, (), output, schemas)
    return PandasProcessor(
        statefulProcessor,
        domain,
        (),
        output,
        schemas,
        max_records=_MAX_RECORDS,
        max_bytes=_MAX_BYTES,
        by_name=True,
        safe=False,
    )


def _parse(schema: str) -> StructType:
    return from_arrow_schema(arrow_schema(schema))
