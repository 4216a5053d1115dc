"""Compiles `cowmap` where Cython and a C compiler are; elsewhere its source is installed and does the same.

The environment variable ``KEYEDSTATE_HEAP_COW_PURE=1`` leaves it uncompiled.
"""

import os
import sys

from setuptools import Extension, setup


def extensions():
    """Return the extension to compile, or nothing with a word on why."""
    if os.environ.get("KEYEDSTATE_HEAP_COW_PURE") == "1":
        print("heap-cow: left uncompiled, as KEYEDSTATE_HEAP_COW_PURE=1 asks", file=sys.stderr)
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("heap-cow: left uncompiled, since Cython is not installed", file=sys.stderr)
        return []
    # Optional: where the compiler is missing or fails, setuptools warns and installs the source alone.
    module = Extension("keyedstate_heap_cow.cowmap", ["src/keyedstate_heap_cow/cowmap.py"], optional=True)
    return cythonize([module], build_dir="build")


setup(ext_modules=extensions())
