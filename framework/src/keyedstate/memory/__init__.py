"""Bytes in memory: the views that serializers write to and read from."""

from keyedstate.memory.views import DataInputView, DataOutputView

__all__ = ["DataInputView", "DataOutputView"]
