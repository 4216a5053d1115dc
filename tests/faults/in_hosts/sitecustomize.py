"""Python imports this when it starts: a host, which is no copy of a watched process, is watched by it."""

from __future__ import annotations

from pathlib import Path

if b"keyedstate.spark.hosts" in Path("/proc/self/cmdline").read_bytes():
    from faults import injection

    injection.install("host")
    injection.watch_frames()
