"""The whole contract of a backend."""

# ruff: noqa: E402 - pytest is checked for before it is imported.

from __future__ import annotations

from keyedstate.testing.requirements import require_test_extra

require_test_extra()

from keyedstate.backend import Capability, StateKind
from keyedstate.testing.contract.machines.expiry_machine import ExpiryMachineContract
from keyedstate.testing.contract.machines.state_machine import MachineContract
from keyedstate.testing.contract.suites.changes import ChangeContract
from keyedstate.testing.contract.suites.columns import ColumnContract
from keyedstate.testing.contract.suites.crashes import CrashContract
from keyedstate.testing.contract.suites.expiry import ExpiryContract
from keyedstate.testing.contract.suites.golden import GoldenContract
from keyedstate.testing.contract.suites.kind_rules import KindRuleContract
from keyedstate.testing.contract.suites.kinds import KindContract
from keyedstate.testing.contract.suites.large_state import LargeStateContract
from keyedstate.testing.contract.suites.snapshots import SnapshotContract
from keyedstate.testing.contract.suites.spilling import SpillContract
from keyedstate.testing.contract.suites.tables import TableContract
from keyedstate.testing.contract.suites.timers import TimerContract
from keyedstate.testing.instances import Instance


class BackendContract(
    TableContract,
    SnapshotContract,
    ChangeContract,
    ColumnContract,
    KindContract,
    KindRuleContract,
    ExpiryContract,
    TimerContract,
    SpillContract,
    LargeStateContract,
    GoldenContract,
    MachineContract,
    ExpiryMachineContract,
    CrashContract,
):
    """Every test of the contract; a test class derives from it and names its backend.

    Tests of a capability run where the backend claims it as full or partial.

    Attributes
    ----------
    backend : str
        The name of an installed backend.
    options : mapping
        Options to run it with, by their full names.
    """

    def test_the_description_has_name_version_and_summary(self, instance: Instance) -> None:
        description = instance.backend.description
        assert description.name == self.backend
        assert description.version
        assert description.summary, "`keyedstate plugins list` shows it"

    def test_the_description_has_a_kind_of_state_and_every_capability(self, instance: Instance) -> None:
        description = instance.backend.description
        assert any(map(description.supports, StateKind))
        assert description.capabilities.keys() == set(Capability), "say it also where it is never"

    def test_every_option_accepts_its_default(self, instance: Instance) -> None:
        for option in instance.backend.description.options:
            assert option.default is None or option.parse(option.default) == option.default, option.name
