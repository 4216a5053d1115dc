"""Compile the copy-on-write map where a C compiler and Cython are found; else install it as plain Python.

Both forms do the same; the compiled one is several times faster.  ``KEYEDSTATE_HEAP_COW_PURE=1`` in the
environment asks for plain Python.  `keyedstate_heap_cow.cowmap.COMPILED` tells at run time which it is.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

#: The sources; the map is plain Python too, the index of tables in columns is there compiled or not at all.
SOURCES = tuple(Path("src", "keyedstate_heap_cow", name) for name in ("cowmap.py", "keyindex.pyx"))


def say(text: str) -> None:
    """Write to the build's output, where nobody can overlook it; pip shows it with ``-v``."""
    sys.stderr.write(f"\n*** keyedstate-heap-cow: {text}\n\n")


def forget_compiled_form() -> None:
    """Remove what an earlier editable installation compiled: Python would prefer it to the source."""
    for source in SOURCES:
        stale = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
        if "editable_wheel" in sys.argv and stale.exists():
            stale.unlink()
            say(f"removed {stale}, compiled by an earlier installation")


def not_compiled(reason: str) -> list[Extension]:
    """Say why nothing is compiled."""
    say(f"NOT COMPILED, installed as plain Python, which is several times slower: {reason}")
    forget_compiled_form()
    return []


class BuildIfPossible(build_ext):
    """Turn a failure to compile into a message."""

    def run(self) -> None:
        """Begin without the result of an earlier build."""
        forget_compiled_form()
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension and say how it went."""
        try:
            super().build_extension(ext)
        except Exception as error:  # a compiler can be missing or fail in as many ways as there are compilers
            not_compiled(f"{error}. A C compiler and the headers of Python are needed; then install again")
        else:
            say("compiled")


def extensions() -> list[Extension]:
    """Return what is to be compiled, which may be nothing."""
    if os.environ.get("KEYEDSTATE_HEAP_COW_PURE", "0") not in ("", "0"):
        return not_compiled("KEYEDSTATE_HEAP_COW_PURE is set")
    try:
        import Cython
        from Cython.Build import cythonize
    except ImportError:
        return not_compiled("Cython is not installed")
    arguments = ["-O3"] if os.name == "posix" else []
    wanted = [
        Extension(f"keyedstate_heap_cow.{source.stem}", [str(source)], extra_compile_args=arguments)
        for source in SOURCES
    ]
    try:
        compiled = cythonize(wanted, build_dir="build/cython", language_level=3)
    except Exception as error:  # an older Cython, without build isolation, may not know what cowmap.py uses
        return not_compiled(f"Cython {Cython.__version__} failed: {error}")
    for extension in compiled:
        extension.optional = True  # cythonize drops it; an editable installation copies what is not optional
    return compiled


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildIfPossible})
