"""Compile the copy-on-write map and the index of tables in columns, each where that is possible.

Without its compiled form the map is installed as plain Python: it does the same, several times slower.
``KEYEDSTATE_HEAP_COW_PURE=1`` in the environment asks for that.  Why something was not compiled is written
into the package as ``not_compiled.json``, which `keyedstate_heap_cow.compiled_form` reads at run time.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = Path("src", "keyedstate_heap_cow")
REASONS = "not_compiled.json"

#: What each extension is compiled from, by its main source.  The map includes its modules, which run as plain
#: Python too; the index of tables in columns exists compiled or not at all.
SOURCES = {PACKAGE / "cowmap.pyx": sorted((PACKAGE / "state_map").glob("*.py")), PACKAGE / "keyindex.pyx": []}


def say(text: str) -> None:
    """Write to the build's output, where the user cannot overlook it; pip shows it with ``-v``."""
    sys.stderr.write(f"\n*** keyedstate-heap-cow: {text}\n\n")


def forget_compiled_form() -> None:
    """Remove what an earlier editable installation compiled: Python would prefer it to the source."""
    if "editable_wheel" not in sys.argv:
        return
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for stale in (*(source.with_name(source.stem + suffix) for source in SOURCES), PACKAGE / REASONS):
        if stale.exists():
            stale.unlink()
            say(f"removed {stale}, made by an earlier installation")


class BuildIfPossible(build_ext):
    """Turn a failure to compile one extension into a message, and compile the others."""

    def run(self) -> None:
        """Begin without the result of an earlier build, and keep the reasons of failures in the package."""
        forget_compiled_form()
        self.reasons: dict[str, str] = {}
        super().run()
        folder = PACKAGE if self.inplace else Path(self.build_lib, PACKAGE.name)
        if self.reasons:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / REASONS).write_text(json.dumps(self.reasons, indent=2) + "\n", encoding="utf-8")
        else:
            (folder / REASONS).unlink(missing_ok=True)

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension and say how it went."""
        (source,) = ext.sources
        name = Path(source).stem
        try:
            # Not before `setup`: what is in `ext.sources` then is what a source distribution holds.
            from Cython.Build import cythonize

            if not Path(source).is_file():
                raise FileNotFoundError(f"the source {source} is missing")
            (translated,) = cythonize([ext], build_dir="build/cython", language_level=3)
            ext.sources = translated.sources
            super().build_extension(ext)
        except Exception as error:  # Cython and compilers can be missing or fail in as many ways as there are
            self.reasons[name] = " ".join(str(error).split())
            say(
                f"NOT COMPILED, {name} is installed as plain Python or left out, which is several times "
                f"slower: {error}. Cython, a C compiler and the headers of Python are needed; then install "
                "again"
            )
        else:
            say(f"compiled {name}")


def extensions() -> list[Extension]:
    """Return what is to be compiled, which may be nothing."""
    if os.environ.get("KEYEDSTATE_HEAP_COW_PURE", "0") not in ("", "0"):
        say(
            "NOT COMPILED, installed as plain Python, which is several times slower: "
            "KEYEDSTATE_HEAP_COW_PURE is set"
        )
        forget_compiled_form()
        return []
    # Not over a level of the user's, which would come before this one and lose.
    given = "-O" in os.environ.get("CFLAGS", "")
    arguments = ["-O3"] if os.name == "posix" and not given else []
    return [
        # Optional: an editable installation copies what is not, whether it was compiled or not.
        Extension(
            f"{PACKAGE.name}.{source.stem}",
            [str(source)],
            depends=[str(path) for path in included],
            extra_compile_args=arguments,
            optional=True,
        )
        for source, included in SOURCES.items()
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildIfPossible})
