"""A server of Spark Connect in a process of its own, beside the classic session of the tests; its queries."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyspark

_STARTED = "Spark Connect server started"


class ConnectServer:
    """The server, which may be killed and started again at the same port."""

    def __init__(self, folder: Path, master: str) -> None:
        self.folder = folder
        #: A `sitecustomize.py` of its Python workers, which they read when a session's first one starts.
        self.site = folder / "site"
        self.site.mkdir()
        self._master = master
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"sc://127.0.0.1:{free.getsockname()[1]}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        settings = {
            "spark.connect.grpc.binding.port": self.url.rpartition(":")[2],
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.local.dir": str(self.folder / "local"),
        }
        options = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
        home = Path(pyspark.__file__).parent
        path = os.pathsep.join([str(self.site), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--master", self._master),
                *options,
                "spark-internal",
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "SPARK_HOME": str(home)},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        log = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            log.append(line)
            if _STARTED in line:
                # The test reads no further, and a full pipe would stop the server.
                subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)
                self._process.stderr.close()
                return
        raise AssertionError("the server did not start:\n" + "".join(log[-30:]))

    @property
    def pid(self) -> int:
        """The process of the server's JVM."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Wait until it has died."""
        assert self._process is not None
        self._process.wait()

    def kill(self) -> None:
        """Kill it, and its workers, which may outlive it."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def session(self) -> Any:
        """Return a new session of a client in this process."""
        from pyspark.sql.connect.session import SparkSession

        return SparkSession.builder.remote(self.url).create()


class JsonQuery:
    """A query over JSON files, one file an epoch, into JSON files."""

    def __init__(self, folder: Path, columns: str = "k string, v long, ts timestamp") -> None:
        self.folder = folder
        self.columns = columns
        self.config: dict[str, object] = {"checkpoint.dir": str(folder / "state"), "parallelism": 2}
        (folder / "input").mkdir(parents=True)

    def add(self, name: str, rows: Iterable[dict[str, Any]], folder: str = "input") -> None:
        hidden = self.folder / folder / f".{name}"
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        # Spark reads files in the order of their times.
        time = 1_000_000_000 + len(list(hidden.parent.iterdir()))
        os.utime(hidden, (time, time))
        hidden.rename(hidden.with_name(f"{name}.json"))

    def add_keys(self, name: str, *keys: str) -> None:
        self.add(name, [{"k": key} for key in keys])

    def frame(self, session: Any, folder: str = "input") -> Any:
        return (
            session.readStream.schema(self.columns)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / folder))
        )

    def start(self, out: Any, checkpoint: str = "spark", sink: str = "out", **trigger: Any) -> Any:
        writer = out.writeStream.format("json").option("path", str(self.folder / sink))
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, out: Any, **options: str) -> Any:
        query = self.start(out, **options)
        query.awaitTermination()
        return query

    def rows(self, session: Any, columns: str, sink: str = "out") -> list[tuple[Any, ...]]:
        read = session.read.schema(columns).json(str(self.folder / sink))
        return sorted(tuple(row) for row in read.collect())
