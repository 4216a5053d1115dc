"""How the Java processes of tests start fast: ``python -m support.java`` archives what Spark loads.

Java writes the classes that a small job needed into a file.  Each Java process of the tests maps it, and
starts in half of the time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

#: Java accepts it from the same version, with the same class path, and ignores it otherwise.
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
#: A test has nothing to gain from a better compiler.  What Java logs of archives would be in the output that
#: Spark's launcher reads.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def fast_start() -> str:
    """Return the options with which Java starts fast."""
    return f"{_OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _OPTIONS


def main() -> None:
    """Run a streaming job and a batch query, and write the archive."""
    from limited_job import run
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "classes.jsa")
        os.environ["JDK_JAVA_OPTIONS"] = f"{_OPTIONS} -XX:ArchiveClassesAtExit={written}"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        run(Path(folder), "heap-cow")
        # Java ends with its standard input, and writes the file then.
        java = SparkContext._gateway.proc
        java.stdin.close()
        java.wait()
        ARCHIVE.write_bytes(written.read_bytes())


if __name__ == "__main__":
    main()
