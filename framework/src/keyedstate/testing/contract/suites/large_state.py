"""What a backend must do that claims states larger than memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keyedstate.backend import Capability, StateKind
from keyedstate.testing.contract.base import ContractBase, requires


class LargeStateContract(ContractBase):
    """The test of `Capability.LARGER_THAN_MEMORY`."""

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the resident set without files")
    @requires(Capability.LARGER_THAN_MEMORY, StateKind.VALUE)
    def test_a_state_of_five_times_the_memory_is_whole(self, tmp_path: Path) -> None:
        """A process of its own writes each entry, and reads it."""
        # Needs a module that Windows does not have.
        from keyedstate.testing.large_state import LargeState

        ran = LargeState(str(tmp_path), self.backend, dict(self.options)).in_another_process()
        assert ran.returncode == 0, ran.stderr
