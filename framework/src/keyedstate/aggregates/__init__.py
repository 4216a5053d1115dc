"""Aggregates over the rows of each key: declared by the user, computed by columns.

::

    from keyedstate.aggregates import count, sum_

    keyed(sales, "shop", uid="totals").aggregate(sales=count(), amount=sum_("amount"))
"""

from keyedstate.aggregates.collecting import collect, collect_set
from keyedstate.aggregates.declaration import Aggregate, BoundAggregate
from keyedstate.aggregates.function import Aggregation
from keyedstate.aggregates.numbers import count, mean, stddev, sum_, variance
from keyedstate.aggregates.selection import all_, any_, first, last, max_, min_
from keyedstate.aggregates.sketches import approx_distinct, approx_quantiles
from keyedstate.aggregates.user_defined import aggregate_with

__all__ = [
    "Aggregate",
    "Aggregation",
    "BoundAggregate",
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
    "stddev",
    "sum_",
    "variance",
]
