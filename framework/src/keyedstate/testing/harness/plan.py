"""The plan that all instances of a harness share: the function, the backend, the types, the time."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from keyedstate.epoch.configuration import choose_backend
from keyedstate.errors import FunctionTransportError, HarnessSettingError, described
from keyedstate.options import BACKEND, MAX_PARALLELISM, PARALLELISM, Configuration
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.checks import BROADCAST, ROWS, check_function, check_row_classes
from keyedstate.runtime.functions.connected_inputs import check_inputs
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import Outputs, check_name
from keyedstate.state.registry.chosen_backend import ChosenBackend
from keyedstate.testing.harness.connected_inputs import ConnectedInputRows
from keyedstate.testing.harness.rows import InputRows, KeyedInputRows, checked_schema
from keyedstate.testing.harness.time import HarnessTime

#: Options that are parameters of the harness.
_PARAMETERS = {BACKEND: "backend", PARALLELISM: "parallelism", MAX_PARALLELISM: "max_parallelism"}


@dataclass(frozen=True)
class InstancePlan:
    """What every instance runs with.

    Attributes
    ----------
    function : KeyedProcessFunction or VectorizedProcessFunction
        Every instance opens a copy of it for each epoch, as embedded tasks do.
    chosen : ChosenBackend
    rows : KeyedInputRows or ConnectedInputRows
    outputs : Outputs
    max_parallelism : int
    time : HarnessTime
    rows_dropped : Counter of str
        Of earlier epochs.
    side_rows : dict of str to list
        The rows of all instances for each side output.
    """

    function: KeyedFunction
    chosen: ChosenBackend
    rows: KeyedInputRows | ConnectedInputRows
    outputs: Outputs
    max_parallelism: int
    time: HarnessTime
    rows_dropped: Counter[str] = field(default_factory=Counter)
    side_rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        function: KeyedFunction,
        rows: KeyedInputRows | ConnectedInputRows,
        output: OutputSchema,
        backend: str,
        options: Mapping[str, object],
        max_parallelism: int,
        time: HarnessTime,
        broadcast: InputRows | None = None,
    ) -> InstancePlan:
        """Choose the backend and check the options and the function.

        Raises
        ------
        InvalidFunctionError, FunctionTransportError
        HarnessSettingError
            For an option that is a parameter of the harness.
        SideOutputNameError, HarnessSchemaError
            For the side outputs of the function.
        ConfigError, PluginError
        """
        check_function(function)
        check_inputs(function, 1 if rows.connected is None else len(rows.connected.inputs))
        columns = {ROWS: rows.schema} if rows.connected is None else rows.columns_by_input
        if broadcast is not None:
            columns[BROADCAST] = broadcast.schema
        check_row_classes(function, columns.__getitem__)
        function = rows.bind(function)
        if broadcast is not None:
            function = function.for_broadcast(broadcast.schema)
        try:
            cloudpickle.dumps(function)
            copy_of(function)
        except Exception as error:  # whatever an object's own way of being pickled or copied raises
            raise FunctionTransportError(type(function).__name__, "pack", described(error)) from error
        for option, parameter in _PARAMETERS.items():
            if option.name in options:
                raise HarnessSettingError(
                    f"the option {option.name!r}",
                    "is a parameter of the harness",
                    f"Give it as {parameter}=... instead.",
                )
        config = Configuration({**options, BACKEND.name: backend})
        return cls(
            function=function,
            chosen=choose_backend(config),
            rows=rows,
            outputs=Outputs(output, _side_outputs(function, rows)),
            max_parallelism=max_parallelism,
            time=time,
        )


def _side_outputs(
    function: KeyedFunction, rows: KeyedInputRows | ConnectedInputRows
) -> dict[str, OutputSchema]:
    found = {}
    for name, columns in function.side_outputs.items():
        check_name(name)
        declared = rows.side_columns(name, function) if columns is None else columns
        found[name] = checked_schema(declared, f"side_outputs[{name!r}]", name)
    return found


def copy_of(function: KeyedFunction) -> KeyedFunction:
    """Return a copy with attributes of its own.

    cloudpickle would replace the methods of a class that is defined inside a test, and with them the
    variables that the test looks at.
    """
    # `copy` cannot copy modules; cloudpickle pickles them by their names.
    return copy.deepcopy(function, {id(module): module for module in sys.modules.values()})
