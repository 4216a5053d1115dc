"""Aggregates over the rows of each key: declared by the user, computed by columns.

::

    from keyedstate.aggregates import count, sum_

    keyed(sales, "shop", uid="totals").aggregate(sales=count(), amount=sum_("amount"))
"""

from keyedstate.aggregates.changes import ChangingAggregation
from keyedstate.aggregates.collecting import collect, collect_set, count_distinct
from keyedstate.aggregates.declaration import Aggregate, BoundAggregate
from keyedstate.aggregates.function import Aggregation
from keyedstate.aggregates.numbers import count, mean, stddev, sum_, variance
from keyedstate.aggregates.ranking import max_by, min_by, top_by, top_k
from keyedstate.aggregates.running import RunningAggregation
from keyedstate.aggregates.selection import all_, any_, first, last, max_, min_
from keyedstate.aggregates.sketches import approx_distinct, approx_quantiles
from keyedstate.aggregates.user_defined import aggregate_with

__all__ = [
    "Aggregate",
    "Aggregation",
    "BoundAggregate",
    "ChangingAggregation",
    "RunningAggregation",
    "aggregate_with",
    "all_",
    "any_",
    "approx_distinct",
    "approx_quantiles",
    "collect",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "last",
    "max_",
    "max_by",
    "mean",
    "min_",
    "min_by",
    "stddev",
    "sum_",
    "top_by",
    "top_k",
    "variance",
]
