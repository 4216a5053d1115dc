"""The command ``keyedstate``."""

from keyedstate.cli.app import main

__all__ = ["main"]
