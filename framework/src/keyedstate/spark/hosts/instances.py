"""Where the backends of a host have their files, and who clears away those of one that was killed.

::

    <Spark's local folder of the executor>/keyedstate-<pid>-<start>/        of one host
        keyedstate-<hex digits>/                                            of one instance of a backend

A worker of Spark has the latter without the former.  Spark's folder is one executor's own, so a process that
is not to be seen there has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from keyedstate.spark.hosts.processes import Process, process_of
from keyedstate.spark.partition import instances_below, local_folder

_PREFIX = "keyedstate-"


@contextlib.contextmanager
def instances_of_this_host() -> Iterator[None]:
    """Let backends have their files in a folder of this process, which is gone at the end.

    Those of hosts that have ended in another way are deleted first.
    """
    local, me = local_folder(), process_of(os.getpid())
    if local is None or me is None:
        yield
        return
    for name in os.listdir(local):
        owner = Process.named(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
        if owner is not None and not owner.is_alive:
            shutil.rmtree(local / name, ignore_errors=True)
    # Made by the first backend that has files.
    own = local / f"{_PREFIX}{me.name}"
    instances_below(own)
    try:
        yield
    finally:
        shutil.rmtree(own, ignore_errors=True)
