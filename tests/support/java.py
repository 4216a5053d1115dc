"""How the Java processes of tests start and work fast: ``python -m support.java`` archives what Spark loads.

Java writes the classes that a small job needed into a file.  Each Java process of the tests maps it, and
starts in half of the time.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Java accepts it from the same version, with the same class path, and ignores it otherwise.
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
#: A test has nothing to gain from a better compiler.  What Java logs of archives would be in the output that
#: Spark's launcher reads.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
#: For each file that it renames on a local disk, Spark's own way starts several processes, ``readlink``.
_FILES = "-Dspark.sql.streaming.checkpointFileManagerClass=org.apache.spark.sql.execution.streaming"


def fast() -> str:
    """Return the options with which Java starts fast, and Spark commits the epochs of a query fast."""
    version = tuple(map(int, importlib.metadata.version("pyspark").split(".")[:2]))
    package = "checkpointing." if version >= (4, 1) else ""
    options = f"{_OPTIONS} {_FILES}.{package}FileSystemBasedCheckpointFileManager"
    has_archive = ARCHIVE.exists() and ARCHIVE.stat().st_size > 0
    return f"{options} -XX:SharedArchiveFile={ARCHIVE}" if has_archive else options


def main() -> None:
    """Write the archive; an empty file where Java cannot."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "classes.jsa")
        archiving = f"-XX:ArchiveClassesAtExit={written}"
        # Some installations lack the archive of Java's own classes, and then Java does not start with this.
        java = [str(Path(os.environ["JAVA_HOME"], "bin", "java")), archiving, "-Xlog:disable", "-version"]
        if subprocess.run(java, capture_output=True, check=False).returncode == 0:
            os.environ["JDK_JAVA_OPTIONS"] = f"{_OPTIONS} {archiving}"
            os.environ["PYSPARK_PYTHON"] = sys.executable
            _run_a_job(Path(folder))
        # Java would believe half of a file.
        whole = ARCHIVE.with_suffix(".new")
        whole.write_bytes(written.read_bytes() if written.exists() else b"")
        whole.replace(ARCHIVE)


def _run_a_job(folder: Path) -> None:
    """Run a streaming job and a batch query, until Java has ended."""
    from limited_job import run
    from pyspark import SparkContext

    run(folder, "heap-cow")
    java = SparkContext._gateway.proc
    # Java ends with its standard input.
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main()
