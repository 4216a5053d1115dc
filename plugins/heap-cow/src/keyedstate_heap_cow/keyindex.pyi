from typing import Any, Final

import numpy as np
import numpy.typing as npt

REVISION: Final[int]
ENTRY: Final[np.dtype[Any]]

def starts_of(entries: npt.NDArray[Any]) -> npt.NDArray[np.int64]: ...

class KeyIndex:
    def __init__(self, capacity: int = 64, size: int = 1024) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def bytes(self) -> npt.NDArray[np.uint8]: ...
    @property
    def entries(self) -> npt.NDArray[Any]: ...
    def locate(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        spaces: npt.NDArray[np.int32],
        groups: npt.NDArray[np.int32],
        add: bool,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def release(self, slots: npt.NDArray[np.int64]) -> None: ...
    def copy_from(
        self, other: KeyIndex, kept: npt.NDArray[np.int64], spaces: npt.NDArray[np.int32]
    ) -> None: ...

def copy_bytes(
    source: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
) -> None: ...
