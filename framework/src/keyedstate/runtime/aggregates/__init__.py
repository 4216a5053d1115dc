"""Aggregates over the rows of each key: declared by the user, computed by columns.

::

    from keyedstate.runtime.aggregates import count, sum_

    keyed(sales, "shop", uid="totals").aggregate(sales=count(), amount=sum_("amount"))
"""

from keyedstate.runtime.aggregates.collecting import collect, collect_set
from keyedstate.runtime.aggregates.declaration import Aggregate, BoundAggregate, require_aggregate
from keyedstate.runtime.aggregates.errors import (
    AggregateError,
    AggregateOverflowError,
    InvalidAggregateError,
    MissingSketchLibraryError,
)
from keyedstate.runtime.aggregates.function import Aggregation
from keyedstate.runtime.aggregates.numbers import count, mean, stddev, sum_, variance
from keyedstate.runtime.aggregates.order import all_, any_, first, last, max_, min_
from keyedstate.runtime.aggregates.sketches import approx_distinct, approx_quantiles
from keyedstate.runtime.aggregates.user_defined import aggregate_with

__all__ = [
    "Aggregate",
    "AggregateError",
    "AggregateOverflowError",
    "Aggregation",
    "BoundAggregate",
    "InvalidAggregateError",
    "MissingSketchLibraryError",
    "aggregate_with",
    "all_",
    "any_",
    "approx_distinct",
    "approx_quantiles",
    "collect",
    "collect_set",
    "count",
    "first",
    "last",
    "max_",
    "mean",
    "min_",
    "require_aggregate",
    "stddev",
    "sum_",
    "variance",
]
