"""Every error that keyedstate raises: the facts as attributes, and a message that ends with the way out."""

# ruff: noqa: F403
from keyedstate.errors.base import *
from keyedstate.errors.checkpoint import *
from keyedstate.errors.function import *
from keyedstate.errors.kernel import *
from keyedstate.errors.local import *
from keyedstate.errors.memory import *
from keyedstate.errors.savepoint import *
from keyedstate.errors.spark import *
from keyedstate.errors.state import *
from keyedstate.errors.tools import *
from keyedstate.errors.types import *
from keyedstate.errors.windows import *

__all__ = sorted(
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, Exception)
)
