"""The error of bytes that cannot be what they claim to be."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class CorruptDataError(KeyedStateError):
    """Bytes that no serializer of the expected type can have written."""

    reason: str  # What is wrong with them
    position: int  # Offset of the first byte that could not be believed, counted from the start of the view
    message = (
        "corrupt data at byte {position}: {reason}. The bytes are damaged or were written by another "
        "serializer; restore from an older checkpoint, or read them with the type that wrote them."
    )
