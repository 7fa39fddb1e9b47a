"""One call's patience: what may be tried again, how long to wait in between, and the error at the end.

Failures come in one by one; `failed` either returns, after a jittered wait, which means "try again", or raises
the error that sums up everything that was tried. It sends nothing and looks nothing up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable

from ottla.config import Retry
from ottla.errors import (
    Attempt,
    AuthenticationFailed,
    BrokerError,
    DeadlineExceeded,
    ErrorCode,
    NetworkError,
    NoBrokerReachable,
    OttlaError,
    SecurityMismatch,
)
from ottla.net.deadline import Deadline
from ottla.net.waiting import Flag

_log = logging.getLogger(__name__)

FINAL = (AuthenticationFailed, SecurityMismatch)
"""Network errors that another attempt would only repeat."""
UNKNOWN_TOPIC_SECONDS = 3.0
"""How long a topic may be unknown before it counts as missing: new topics reach all brokers well within that."""
_UNKNOWN = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
LEAST_SECONDS = 0.02
"""An attempt with less time than this would hardly succeed, and would close a shared connection when it fails."""
_CAUSES_KEPT = 20
_LATER = "; later: "


class Attempts:
    """The attempts of one call, under one deadline. `pause` is set when the caller must not wait any more."""

    def __init__(
        self,
        what: str,
        *,
        deadline: Deadline,
        retry: Retry,
        chance: random.Random,
        pause: Flag,
        rounds: int | None = None,
    ) -> None:
        """`rounds` in which no address answers are the end, however much time is left."""
        self.what = what
        self.deadline = deadline
        self._retry = retry
        self._chance = chance
        self._pause = pause
        self._rounds = rounds
        self._failures = 0
        self._was_last = False
        self._unknown_since: float | None = None
        self._unreachable = 0  # rounds in a row in which no address answered
        self._advice = ""
        self._causes: dict[str, None] = {}
        self._attempts: dict[str, Attempt] = {}

    def failed(self, error: OttlaError) -> None:
        """Waits before the next attempt, or raises because there will be none."""
        self._note(error)
        # A deadline that an attempt has run into is this call's own, or it would have been tried for long enough.
        is_over = isinstance(error, DeadlineExceeded) or not worth_repeating(error)
        if is_over or self._does_not_exist(error):
            raise error
        self._failures += 1
        if self._rounds is not None and self._unreachable >= self._rounds:
            raise self._summary() from error
        wait = self._next_wait(error)
        _log.debug("%s: trying again in %.3f s after: %s", self.what, wait, _headline(error))
        if self._pause.wait(wait):
            raise error

    def _next_wait(self, error: OttlaError) -> float:
        wait = self._retry.wait(self._failures, self._chance.random())
        remaining = self.deadline.remaining()
        if wait + LEAST_SECONDS <= remaining:
            return wait
        if self._was_last or remaining < 2 * LEAST_SECONDS:
            raise self._summary() from error
        # The wait would outlast the deadline: use half of what is left and leave the rest for one last attempt.
        self._was_last = True
        return remaining / 2

    def _does_not_exist(self, error: OttlaError) -> bool:
        """Kafka calls an unknown topic retriable; one that stays unknown was misspelled."""
        if not isinstance(error, BrokerError) or error.code not in _UNKNOWN:
            self._unknown_since = None
            return False
        if self._unknown_since is None:
            self._unknown_since = self.deadline.elapsed()
        return self.deadline.elapsed() - self._unknown_since >= UNKNOWN_TOPIC_SECONDS

    def _note(self, error: OttlaError) -> None:
        if isinstance(error, NoBrokerReachable):
            self._unreachable += 1
            self._advice = error.advice or self._advice
            for attempt in error.attempts:
                self._attempts[attempt.address] = _added(self._attempts.get(attempt.address), attempt)
            return
        self._unreachable = 0
        if isinstance(error, BrokerError):
            self._advice = error.row.advice
        text = _headline(error)
        self._causes.pop(text, None)  # a repeated cause counts where it came last
        self._causes[text] = None

    def _summary(self) -> OttlaError:
        seconds = self.deadline.elapsed()
        # One round in which nobody answered may just have been too short, at the very end.
        if self._unreachable > 1 or not self._causes:
            return NoBrokerReachable(tuple(self._attempts.values()), seconds, self._advice)
        causes = tuple(self._causes)[-_CAUSES_KEPT:]
        return DeadlineExceeded(self.what, seconds, causes, self._advice)


def all_final(errors: Iterable[OttlaError]) -> bool:
    """Whether each of the errors would only be repeated by another attempt."""
    return all(isinstance(error, FINAL) for error in errors)


def worth_repeating(error: OttlaError) -> bool:
    """Whether the same may succeed when it is tried again: the cause can go away without anybody changing a setting."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, NetworkError | NoBrokerReachable | DeadlineExceeded) and not isinstance(error, FINAL)


def _added(before: Attempt | None, now: Attempt) -> Attempt:
    if before is None:
        return now
    # The first reason often tells most: the last attempts may only have had too little time.
    first = before.reason.partition(_LATER)[0]
    reason = first if now.reason == first else f"{first}{_LATER}{now.reason}"
    return Attempt(now.address, reason, before.seconds + now.seconds, before.tries + now.tries)


def _headline(error: OttlaError) -> str:
    """The first line: advice is given once, at the end."""
    return str(error).partition("\n")[0]
