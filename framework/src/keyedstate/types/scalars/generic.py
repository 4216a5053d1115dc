"""Generic values: any object that can be pickled, as bytes (Flink's are written by Kryo).

They cannot evolve, no other tool reads them, and they are slow: prefer a dataclass.  The option
``types.generic`` forbids them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from keyedstate.errors import GenericTypeForbiddenError, UnreadableGenericValueError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import ColumnarSerializer
from keyedstate.types.contract.composite import CompositeSerializer
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer

#: Of pickles: what every supported Python reads.
_PROTOCOL = 5


@restorable
class PickledSerializer(ColumnarSerializer[Any]):
    """Any object but None: a 32-bit length and its pickle; in columns binary.

    From a snapshot it is `opaque` and unpickles nothing: its values are the pickles, so that a program keeps
    a generic state without having its classes.
    """

    type_name = "pickled"

    def __init__(self, opaque: bool = False) -> None:
        self.opaque = opaque
        self.immutable = opaque

    def parts(self) -> tuple[object, ...]:
        return (self.opaque,)

    def __repr__(self) -> str:
        return "pickled()"

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> PickledSerializer:
        return cls(opaque=True)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def check(self, value: object) -> None:
        self._dumps(value)

    def copy(self, value: Any) -> Any:
        # As a restart copies it; copy.deepcopy fails earlier on nested values, and may share.
        return value if self.opaque else _loads(self._dumps(value))

    def serialize(self, value: Any, out: DataOutputView) -> None:
        out.write_bytes(self._dumps(value))

    def deserialize(self, source: DataInputView) -> Any:
        data = source.read_bytes()
        return data if self.opaque else _loads(data)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))

    def read_column(self, array: pa.Array) -> list[Any]:
        found = array.to_numpy(zero_copy_only=False).tolist()
        return found if self.opaque else [None if data is None else _loads(data) for data in found]

    def write_column(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else self._dumps(value) for value in values], pa.binary())

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
        return _loads if isinstance(old, PickledSerializer) and old.opaque and not self.opaque else None

    def _dumps(self, value: Any) -> bytes:
        if self.opaque:
            if value.__class__ is not bytes:
                raise ValueTypeError.of(f"{self!r} as restored (bytes)", value, "Give the pickle.")
            return value
        if value is None:
            raise ValueTypeError.of(
                f"{self!r} (an object)", value, f"Declare the type as nullable({self!r}) if None is a value."
            )
        try:
            return cloudpickle.dumps(value, protocol=_PROTOCOL)  # type: ignore[no-any-return]
        except Exception as error:  # whatever the object's own methods raise
            if RecursionError in (type(error), type(error.__cause__)):
                way_out = "It is nested too deeply: flatten it, or keep its parts in a list or map state."
            else:
                way_out = (
                    f"It cannot be pickled ({type(error).__name__}: {error}). Keep what it is made from in "
                    "the state, and create it again in open()."
                )
        raise ValueTypeError.of(f"{self!r} (an object that can be pickled)", value, way_out)


def pickled() -> PickledSerializer:
    """Return the generic type: any object that cloudpickle can pickle, None aside.

    A state pickles an object when it gets it, and refuses at once one that cannot be pickled.  Classes and
    functions of the main script are pickled with their code: they are restored as they were then, and another
    version of Python may not read them.
    """
    return PickledSerializer()


def generic_parts(serializer: TypeSerializer[Any], path: str = "") -> Iterator[str]:
    """Yield the paths of a type's generic parts: ``value.element``, or an empty string for itself."""
    if isinstance(serializer, PickledSerializer):
        yield path
    elif isinstance(serializer, CompositeSerializer):
        for name, inner in zip(serializer.inner_names, serializer.inners, strict=True):
            yield from generic_parts(inner, f"{path}.{name}" if path else name)


def refuse_generic(state: str, serializer: TypeSerializer[Any]) -> None:
    """Raise `GenericTypeForbiddenError` for a state whose type has generic parts."""
    for path in generic_parts(serializer):
        raise GenericTypeForbiddenError(state, repr(serializer), path)


def _loads(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # whatever the classes' own methods raise
        raise UnreadableGenericValueError(f"{type(error).__name__}: {error}") from error
