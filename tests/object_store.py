"""A real S3-compatible server in a process of its own, with an empty bucket."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BUCKET = "bucket"
_START_SECONDS = 600


class ObjectStore:
    """moto's server on a free port; it keeps objects in memory, so that a restarted one is empty.

    Attributes
    ----------
    port : int
    """

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._log = log
        self._read = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and make the bucket; does nothing where it runs."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.request("PUT", f"/{BUCKET}")
                return
            except urllib.error.URLError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start: {self._log.read_text()}") from None
                time.sleep(0.05)

    def kill(self) -> None:
        """End the server as a power failure does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def request(self, method: str, path: str, data: bytes = b"") -> bytes:
        """Send a request that no client of ours knows of."""
        url = f"http://127.0.0.1:{self.port}{path}"
        # Without a type the server would take the content for the fields of a form.
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data=data or None, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as answer:
            content: bytes = answer.read()
            return content

    def uri(self, path: str, user: str = "key:secret@", bucket: str = BUCKET) -> str:
        """Return the URI of a folder in the bucket."""
        options = f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1%3A{self.port}"
        return f"s3://{user}{bucket}/{path}?{options}"

    def requests(self) -> list[str]:
        """Return the requests since the last call, each as ``GET /bucket/key``."""
        # The server's threads log when they can: until nothing is added for a while.
        text, before = self._log.read_text(errors="replace"), ""
        while text != before:
            time.sleep(0.05)
            text, before = self._log.read_text(errors="replace"), text
        new, self._read = text[self._read :], len(text)
        # The server colours some of them, where colorama is not installed.
        found = re.findall(r'"(?:\x1b\[\d+m)*([A-Z]+ /\S*) HTTP/', new)
        return [line for line in found if "/moto-api/" not in line and line != f"PUT /{BUCKET}"]

    def check_users(self, on: bool) -> None:
        """Let the server refuse users that it does not know, or serve everybody again."""
        self.request("POST", "/moto-api/reset-auth", b"0" if on else b"inf")
