"""Bytes in memory: the views that serializers write to and read from."""

from keyedstate.memory.errors import CorruptDataError
from keyedstate.memory.views import DataInputView, DataOutputView

__all__ = ["CorruptDataError", "DataInputView", "DataOutputView"]
