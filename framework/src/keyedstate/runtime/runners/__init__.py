"""What runs a function over the rows of one partition: an operator for each kind of function."""

from keyedstate.runtime.runners.choice import keyed_operator
from keyedstate.runtime.runners.keyed_operator import KeyedOperator, OperatorSpec

__all__ = ["KeyedOperator", "OperatorSpec", "keyed_operator"]
