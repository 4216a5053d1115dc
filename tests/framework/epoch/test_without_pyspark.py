"""The room of epochs is used where no PySpark is: by the harness, the crash tests and the contract kit."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, pkgutil, sys

class NoPySpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} cannot be imported here")

sys.meta_path.insert(0, NoPySpark())
import keyedstate.epoch
for module in pkgutil.walk_packages(keyedstate.epoch.__path__, "keyedstate.epoch."):
    importlib.import_module(module.name)
    print(module.name)
"""


def test_every_module_of_epochs_is_imported_where_pyspark_cannot_be():
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "keyedstate.epoch.partition" in found.stdout.split()
