"""The Python that Spark's workers run, which need not be the one that runs the driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from keyedstate.cli.checks import ANSWER_SECONDS, SUPPORTED, Check, Status, is_supported

_NAME = "python of the workers"
_VARIABLE = "PYSPARK_PYTHON"
_PROPERTY = "spark.pyspark.python"
_PATTERN = re.compile(rf"^\s*{re.escape(_PROPERTY)}(?:\s*[=:]\s*|\s+)(\S+)\s*$", re.MULTILINE)
#: What workers import besides keyedstate and the backend; Spark brings PySpark along.
_LIBRARIES = ("pandas", "pyarrow")

#: Runs in the other interpreter, which may be of any version.
_QUESTION = """
import json, sys
try:
    from importlib.metadata import version
except ImportError:
    version = None
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except Exception:
        found[name] = None
print(json.dumps({"python": list(sys.version_info[:3]), "path": sys.executable, "versions": found}))
"""


def check_worker_python(needed: Mapping[str, str]) -> Check:
    """Check the interpreter that Spark would start for Python functions on this machine.

    `needed` has the driver's versions of keyedstate and the chosen backend, by distribution: workers need the
    same.
    """
    python, origin = _chosen_python()
    way_out = (
        f"Set {_VARIABLE}={sys.executable} where jobs are started, or on a cluster to a Python that has the "
        "packages of the driver on every executor."
    )
    found = shutil.which(python)
    if found is None:
        if os.sep in python and not os.path.isabs(python):
            detail = f"{python} ({origin}) is relative to a folder of the executor, so it was not looked at"
            return Check(_NAME, Status.WARNING, detail, way_out)
        return Check(_NAME, Status.FAILED, f"there is no {python} ({origin})", way_out)
    try:
        ran = subprocess.run(
            [found, "-c", _QUESTION, *_LIBRARIES, *needed],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
        answer = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Check(_NAME, Status.FAILED, f"{found} ({origin}) does not run: {error}", way_out)
    version = ".".join(map(str, answer["python"]))
    detail = f"{version} at {answer['path']} ({origin})"
    faults = list(_package_faults(answer["versions"], needed))
    if answer["python"][:2] != list(sys.version_info[:2]):
        # PySpark refuses it too, in the first task.
        driver = ".".join(map(str, sys.version_info[:2]))
        faults.insert(0, f"PySpark needs the driver's {driver} there")
    if faults:
        return Check(_NAME, Status.FAILED, f"{detail}: {'; '.join(faults)}", way_out)
    return Check(_NAME, Status.OK, detail)


def _chosen_python() -> tuple[str, str]:
    """Return the interpreter as it is named, and where."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    # The file from which spark-submit takes properties.
    defaults = None if folder is None else Path(folder, "spark-defaults.conf")
    if defaults is not None and defaults.is_file():
        named = re.search(_PATTERN, defaults.read_text("utf-8", "replace"))
        if named is not None:
            return named[1], f"{_PROPERTY} in {defaults}"
    if named_by_variable := os.environ.get(_VARIABLE):
        return named_by_variable, f"from {_VARIABLE}"
    return "python3", f"the first on the PATH, since {_VARIABLE} is not set"


def _package_faults(versions: Mapping[str, str | None], needed: Mapping[str, str]) -> Iterator[str]:
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        yield f"it lacks {', '.join(missing)}"
    for name, version in versions.items():
        if version is None:
            continue
        if name in needed and version != needed[name]:
            yield f"it has {name} {version}, and the driver {needed[name]}"
        elif name in SUPPORTED and not is_supported(name, version):
            yield f"its {name} {version} is not supported"
