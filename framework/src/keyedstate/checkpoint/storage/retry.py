"""Retries of requests to a storage: after which errors, how often, and after which pause.

Only errors that may be gone a moment later are retried: timeouts, throttling, broken connections, errors of
the server itself.  After a missing file, a missing permission, a full disk or a wrong request the answer
would be the same.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from keyedstate.options import STORAGE_RETRIES, STORAGE_RETRY_DELAY, Configuration

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The longest pause.
_LONGEST_PAUSE_SECONDS = 20.0
_TRANSIENT_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EPIPE,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ESTALE,  # a network file system whose file was replaced under it: opening it again helps
        errno.ETIMEDOUT,
    }
)
# Messages of pyarrow's file systems without an error number: the names of the AWS SDK's errors as Arrow's S3
# file system writes them, and the status codes of Google's and Azure's clients.
_TRANSIENT_WORDS = re.compile(
    r"""
    AWS\ Error\ (?:NETWORK_CONNECTION | INTERNAL_FAILURE | SERVICE_UNAVAILABLE | THROTTLING | SLOW_DOWN
                   | REQUEST_TIMEOUT | BANDWIDTH_LIMIT_EXCEEDED)\b
    | \bHTTP\ status\ (?:code\ )?(?:408|429|5\d\d)\b
    | \b(?:408\ Request\ Timeout|429\ Too\ Many\ Requests|500\ Internal|502\ Bad\ Gateway|503\ S|504\ Gateway)
    | \b(?:UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED)\b
    | \bcurlCode:
    | \btimed?[ -]?out\b | \btimeout\b
    | connection\ (?:was\ )?(?:reset|refused|aborted|closed) | broken\ pipe
    | temporarily\ unavailable | service\ unavailable | server\ is\ busy | too\ many\ requests
    | slow\ ?down | throttl
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed a moment later."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and number is not None:
        return number in _TRANSIENT_NUMBERS
    # A class of its own tells more than words: a missing file may be called "timeout.json".
    if type(error) not in (OSError, pa.ArrowException):
        return False
    return _TRANSIENT_WORDS.search(str(error)) is not None


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed request is sent again, and how long the pauses are.

    The pause before the n-th retry is random, from the upper half of ``delay_ms * 2**(n - 1)``, and at most
    20 seconds.  It doubles, which spares an overloaded storage, and differs between tasks, so that they do
    not all retry at once.
    """

    #: The option ``storage.retries``.
    retries: int = STORAGE_RETRIES.default or 0
    #: The option ``storage.retry-delay``.
    delay_ms: int = STORAGE_RETRY_DELAY.default or 0
    #: Waits for so many seconds.
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)
    #: Gives a random number from 0 up to 1.
    fraction: Callable[[], float] = field(default=random.random, compare=False, repr=False)

    @classmethod
    def of(cls, config: Configuration) -> RetryPolicy:
        """Read the options."""
        return cls(config[STORAGE_RETRIES], config[STORAGE_RETRY_DELAY])

    def call(
        self,
        function: Callable[[], T],
        what: str,
        transient: Callable[[Exception], bool] = is_transient,
    ) -> T:
        """Return ``function()``, called again after each `transient` error for as long as the policy allows.

        Raises the last error as `function` raised it.  The log names the request, as in ``write
        s3://bucket/_owner``.
        """
        for done in range(self.retries):
            try:
                return function()
            except Exception as error:
                if not transient(error):
                    raise
                pause = self.pause(done)
                _log.warning(
                    "cannot %s (%s); trying again in %.1f s, %d of %d",
                    what,
                    type(error).__name__,
                    pause,
                    done + 1,
                    self.retries,
                )
            self.sleep(pause)
        return function()

    def pause(self, done: int) -> float:
        """Return the seconds to wait after `done` retries have failed."""
        # The exponent is bounded: 2.0 ** 10000 is an error.
        longest = min(_LONGEST_PAUSE_SECONDS, self.delay_ms / 1000.0 * 2.0 ** min(done, 32))
        return longest * (0.5 + 0.5 * self.fraction())


#: The options' defaults.
DEFAULT = RetryPolicy()
