"""The checks of `keyedstate doctor`: each returns what it found and, for a problem, the way out."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.plugins import refusal_of
from keyedstate.config import SPARK_PREFIX
from keyedstate.errors import KeyedStateError, UnknownBackendError
from keyedstate.options import BACKEND, CHECKPOINT_DIR, Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.row_path import compiled
from keyedstate.version import __version__

Version = tuple[int, ...]

#: The versions that the framework's own metadata allows: the first, and the one that ends them.
SUPPORTED: dict[str, tuple[Version, Version | None]] = {
    "pyspark": ((3, 5), (5,)),
    "pandas": ((2, 2), (3,)),
    "pyarrow": ((18,), None),
}
NEWEST_PYTHON = (3, 13)
OLDEST_JAVA = 17
#: An interpreter or a Java that does not answer by then hangs.
ANSWER_SECONDS = 60


class Status(str, enum.Enum):
    """How a check ended."""

    OK = "ok"
    #: Not needed for what is configured, or likely to hurt later.
    WARNING = "warning"
    #: Jobs will not run.
    FAILED = "failed"
    #: There was nothing to check.
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check: its name, what it found, and the way out where `detail` does not say it."""

    name: str
    status: Status
    detail: str
    way_out: str = ""


def check_python() -> Check:
    """Check the version of this interpreter."""
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        way_out = f"Prefer a Python up to {newest}: later ones were not tried."
        return Check("python", Status.WARNING, found, way_out)
    return Check("python", Status.OK, found)


def check_keyedstate() -> Check:
    """Check in which form the per-record path runs."""
    if compiled is not None:
        return Check("keyedstate", Status.OK, f"{__version__}, the per-record path is compiled")
    way_out = (
        "Functions that take rows one by one run faster where it is compiled: where a C compiler and the "
        "headers of Python are installed, run `pip install --force-reinstall --no-deps --no-cache-dir "
        "keyedstate`."
    )
    return Check("keyedstate", Status.OK, f"{__version__}, the per-record path is plain Python", way_out)


def check_java(pyspark: str | None) -> Check:
    """Run the Java that Spark would take, ``JAVA_HOME`` or else the first on the path, and check its version.

    `pyspark` is PySpark's version: some versions of the two do not go together.
    """
    install = f"Install Java {OLDEST_JAVA} or 21, or set JAVA_HOME to the folder of one (it holds bin/java)."

    def failed(detail: str, way_out: str = install) -> Check:
        return Check("java", Status.FAILED, detail, way_out)

    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return failed("JAVA_HOME is not set and there is no java on the PATH")
    origin = f"{java} ({'from JAVA_HOME' if home else 'from the PATH'})"
    output = _run_java(java, "-version")
    if isinstance(output, str):
        return failed(f"{origin} does not run: {output}")
    text = output.stdout + output.stderr
    words = re.search(r'version "([^"]+)"', text)
    if output.returncode != 0 or words is None:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "it prints nothing")
        return failed(f"{origin} does not tell its version: {first}")
    numbers = parse_version(words[1])
    # Java 8 calls itself 1.8.
    major = numbers[1] if numbers[:1] == (1,) and len(numbers) > 1 else numbers[0]
    found = f"{words[1]}, {origin}"
    if major < OLDEST_JAVA:
        return failed(f"{found}; Spark needs {OLDEST_JAVA} or newer")
    spark = parse_version(pyspark) if pyspark is not None else None
    if spark is not None and spark < (4, 1) and major >= 23:
        # Java 23 withdrew Subject.getSubject, which Hadoop calls before 3.4.2 (HADOOP-19212).
        return failed(f"{found}; PySpark {pyspark} does not start on Java 23 or newer")
    if spark is not None and spark >= (4,):
        module = _run_java(java, "--add-modules=jdk.incubator.vector", "-version")
        if isinstance(module, str) or module.returncode != 0:
            return failed(
                f"{found}; it lacks the module jdk.incubator.vector, which Spark {spark[0]} asks for by name",
                f"{install} A runtime cut down by jlink may lack it.",
            )
    return Check("java", Status.OK, found)


def check_libraries(python: Version) -> Iterator[Check]:
    """Check the versions of PySpark, pandas and pyarrow, and whether they go with this Python."""
    pip = f"`{sys.executable} -m pip install"
    for name, (oldest, limit) in SUPPORTED.items():
        found = installed_version(name)
        wanted = f"{name}>={'.'.join(map(str, oldest))}"
        if limit is not None:
            wanted += f",<{'.'.join(map(str, limit))}"
        way_out = f"Install it with {pip} '{wanted}'`."
        numbers = parse_version(found or "")
        if found is None:
            why = ", which PySpark's Arrow functions import without declaring it" if name == "pandas" else ""
            yield Check(name, Status.FAILED, f"not installed{why}", way_out)
        elif not is_supported(name, found):
            detail = f"{found}; PySpark refuses it" if name == "pandas" and numbers >= oldest else found
            yield Check(name, Status.FAILED, f"{detail}, and {wanted} is needed", way_out)
        elif name == "pyspark" and numbers >= (4, 3) and python < (3, 11):
            way_out = f"Use a newer Python, or {pip} 'pyspark>=3.5,<4.3'`."
            yield Check(name, Status.FAILED, f"{found} needs Python 3.11 or newer", way_out)
        elif name == "pyspark" and numbers < (4,) and python >= (3, 12) and not find_spec("setuptools"):
            detail = f"{found} imports distutils, which Python 3.12 removed and setuptools brings back"
            yield Check(name, Status.FAILED, detail, f"Install it with {pip} setuptools`.")
        else:
            yield Check(name, Status.OK, found)


def check_backends(registry: PluginRegistry, settings: Configuration) -> Iterator[Check]:
    """Check every installed backend; only the chosen one is essential."""
    chosen = settings[BACKEND]
    if chosen not in {provider.name for provider in registry.providers()}:
        try:
            registry.choose(chosen)
        except UnknownBackendError as error:
            yield Check(f"backend {chosen}", Status.FAILED, str(error))
    for provider in registry.providers():
        name = f"backend {provider.name}"
        refusal = refusal_of(registry, provider)
        if refusal is not None:
            status = Status.FAILED if provider.name == chosen else Status.WARNING
            yield Check(name, status, str(refusal))
            continue
        description = registry.load(provider).description
        words = [str(provider), description.build, "chosen" if provider.name == chosen else ""]
        status = Status.WARNING if description.build_problem else Status.OK
        yield Check(name, status, ", ".join(word for word in words if word), description.build_problem)


def check_other_plugins(registry: PluginRegistry) -> Iterator[Check]:
    """Check the installed plugins that are no backends: jobs skip a broken one."""
    for provider in registry.plugins():
        if not provider.is_backend:
            refusal = registry.refusal(provider)
            status = Status.OK if refusal is None else Status.WARNING
            yield Check(f"plugin {provider.name}", status, str(refusal or provider))


def check_storage(settings: Configuration) -> Check:
    """Write a file into ``checkpoint.dir``, read it back and delete it, as this user on this machine."""
    uri = settings.get(CHECKPOINT_DIR)
    if uri is None:
        way_out = f"A job needs --conf {SPARK_PREFIX}{CHECKPOINT_DIR.name}=..."
        return Check("storage", Status.SKIPPED, f"{CHECKPOINT_DIR.name} is not set", way_out)
    name, data = f"doctor-{uuid.uuid4().hex}", os.urandom(1024)
    try:
        storage = CheckpointStorage.open(uri, settings)
        root = Path(storage.root)
        # The deepest first, as they have to be removed.
        made = [folder for folder in (root, *root.parents) if storage.is_local and not folder.exists()]
        try:
            storage.write_atomic(name, data)
            read = storage.read(name)
            storage.delete_file(name)
        finally:
            for folder in made:
                # Another process may have written into one by now.
                with contextlib.suppress(OSError):
                    folder.rmdir()
    except KeyedStateError as error:
        return Check("storage", Status.FAILED, str(error))
    if read != data:
        detail = f"{storage.location()} gave back other bytes than were written"
        return Check("storage", Status.FAILED, detail, f"Set {CHECKPOINT_DIR.name} to another location.")
    detail = f"{storage.location()} can be written, read and deleted from this machine"
    return Check("storage", Status.OK, detail)


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution without importing it, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        pass
    # A Spark that was unpacked and put on the path, as clusters do, has no metadata.
    spec = find_spec(name)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "version.py"
        words = re.search(r'__version__[^"\n]*"([^"]+)"', file.read_text("utf-8")) if file.is_file() else None
        if words is not None:
            return words[1]
    return None


def is_supported(name: str, found: str) -> bool:
    """Return whether the framework supports a version of a library."""
    oldest, limit = SUPPORTED[name]
    numbers = parse_version(found)
    return numbers >= oldest and (limit is None or numbers < limit)


def parse_version(text: str) -> Version:
    """Return the numbers of a version without its suffix, such as a build or a release candidate."""
    words = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, words[0].split("."))) if words is not None else (0,)


def _run_java(java: str, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run([java, *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_SECONDS} seconds"
