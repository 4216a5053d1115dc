"""What a backend knows of the instance that it works for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from keyedstate.keygroups import KeyGroupRange
from keyedstate.working_folder import WorkingFolder


@dataclass(frozen=True)
class BackendContext:
    """One instance of a backend: one operator, one contiguous range of key groups, one owner thread.

    Every hook of the instance gets the same context.

    Attributes
    ----------
    key_groups : KeyGroupRange
        The key groups that the instance owns.
    max_parallelism : int
        Number of key groups of the whole operator.
    options : mapping
        The values of the plugin's own options by their full name (``heap-cow.page-buckets``), typed
        and with defaults filled in.
    local_base : Path
        The folder in which the instance may make its private folder.
    resources : dict
        The plugin's own scratch space: what its tables share (an open database, a memory budget).
    closing : ExitStack
        Closed, last registered first, when the instance is closed; a plugin registers its clean-up here.
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    options: Mapping[str, Any]
    local_base: Path
    resources: dict[str, Any] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)
    _folder: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __post_init__(self) -> None:
        # Registered first, so closed last: what a plugin registers may use the folder.
        self.closing.enter_context(self._folder)

    @cached_property
    def local_dir(self) -> Path:
        """A private folder on a local disk, made at the first access and deleted with the instance.

        Raises `OSError` where it cannot be made.
        """
        folder = WorkingFolder(self.local_base)
        self._folder.callback(folder.remove)
        return folder.path
