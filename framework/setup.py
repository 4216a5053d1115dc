"""Compile the steps of the per-record path, where that is possible.

Without their compiled form the framework does the same, slower: `keyedstate.row_path` has both. With
``KEYEDSTATE_PURE=1`` in the environment nothing is compiled, and a wheel is one for all platforms.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NAME = "keyedstate.row_path.compiled"
SOURCE = "src/keyedstate/row_path/compiled.pyx"


class BuildIfPossible(build_ext):
    """Turn a failure to compile into a message."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the extension and say how it went."""
        try:
            # Not before `setup`: what is in `ext.sources` then is what a source distribution has.
            from Cython.Build import cythonize

            (translated,) = cythonize([ext], build_dir="build/cython", language_level=3)
            ext.sources = translated.sources
            super().build_extension(ext)
        except Exception as error:  # Cython and compilers can be missing or fail in as many ways as there are
            say(
                f"NOT COMPILED, the per-record path is plain Python, which is slower: {error}. Cython, a C "
                "compiler and the headers of Python are needed; then install again"
            )
        else:
            say("compiled the per-record path")


def say(text: str) -> None:
    """Write to the build's output; pip shows it with ``-v``."""
    sys.stderr.write(f"\n*** keyedstate: {text}\n\n")


pure = os.environ.get("KEYEDSTATE_PURE", "0") not in ("", "0")
# Optional: an editable installation copies what is not, whether it was compiled or not.
extensions = [] if pure else [Extension(NAME, [SOURCE], optional=True)]
setup(ext_modules=extensions, cmdclass={"build_ext": BuildIfPossible})
