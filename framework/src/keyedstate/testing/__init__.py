"""The contract kit: what the author of a backend runs against it.

A whole test file of a backend is::

    from keyedstate.testing import BackendContract


    class TestMyBackend(BackendContract):
        backend = "my-backend"

Needs pytest (``pip install 'keyedstate[test]'``).
"""

import pytest

# Before it is imported: its assertions are to explain themselves as those of a test file do.
pytest.register_assert_rewrite("keyedstate.testing.contract")

from keyedstate.testing.contract import BackendContract  # noqa: E402
from keyedstate.testing.instances import Instance, open_instance  # noqa: E402

__all__ = ["BackendContract", "Instance", "open_instance"]
