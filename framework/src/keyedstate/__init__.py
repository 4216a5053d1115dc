"""keyedstate: Flink's keyed state for PySpark jobs, over a state backend that configuration picks."""

from importlib.metadata import version

__version__ = version("keyedstate")
