"""The retry loop of one call: what to retry, how long to back off, and the error at the end.

Failures come in one at a time. `failed` either returns after a jittered wait, which means "try again", or raises
an error that sums up everything that was tried. It never sends a request or looks anything up.
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
"""Network errors that a retry would only repeat."""
UNKNOWN_TOPIC_SECONDS = 3.0
"""How long a topic may be unknown before it counts as missing. New topics reach all brokers well within that."""
_UNKNOWN = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
LEAST_SECONDS = 0.02
"""The shortest useful attempt. A shorter one would hardly succeed, and its failure would close a shared connection."""
_CAUSES_KEPT = 20
_LATER = "; later: "


class Attempts:
    """The attempts of one call, under one deadline. Setting `pause` ends the current wait: the caller is closing."""

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
        """`what` names the call in errors. After `rounds` without any answer it gives up, even before the deadline."""
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
        """Wait before the next attempt.

        Raises `error` if a retry is pointless, and `DeadlineExceeded` or `NoBrokerReachable` when time runs out.
        """
        self._note(error)
        # A DeadlineExceeded from an attempt means this call's own deadline: there is no time left to retry.
        is_over = isinstance(error, DeadlineExceeded) or not worth_repeating(error)
        if is_over or self._does_not_exist(error):
            raise error
        self._failures += 1
        if self._rounds is not None and self._unreachable >= self._rounds:
            raise self._summary() from error
        wait = self._next_wait(error)
        _log.debug("%s: retrying in %.3f s after: %s", self.what, wait, headline(error))
        if self._pause.wait(wait):
            raise error

    def _next_wait(self, error: OttlaError) -> float:
        wait = self._retry.wait(self._failures, self._chance.random())
        remaining = self.deadline.remaining()
        if wait + LEAST_SECONDS <= remaining:
            return wait
        if self._was_last or remaining < 2 * LEAST_SECONDS:
            raise self._summary() from error
        # The wait would outlast the deadline: use half of the remaining time and leave the rest for one last attempt.
        self._was_last = True
        return remaining / 2

    def _does_not_exist(self, error: OttlaError) -> bool:
        """Kafka calls an unknown topic retriable, but one that stays unknown was misspelled."""
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
                self._attempts[attempt.address] = _combined(self._attempts.get(attempt.address), attempt)
            return
        self._unreachable = 0
        if isinstance(error, BrokerError):
            self._advice = error.row.advice
        text = headline(error)
        self._causes.pop(text, None)  # a repeated cause moves to the end
        self._causes[text] = None

    def _summary(self) -> OttlaError:
        seconds = self.deadline.elapsed()
        # A single round without an answer may just have been too short, right before the deadline.
        if self._unreachable > 1 or not self._causes:
            return NoBrokerReachable(tuple(self._attempts.values()), seconds, self._advice)
        causes = tuple(self._causes)[-_CAUSES_KEPT:]
        return DeadlineExceeded(self.what, seconds, causes, self._advice)


def all_final(errors: Iterable[OttlaError]) -> bool:
    """Whether retrying is pointless for every one of the errors."""
    return all(isinstance(error, FINAL) for error in errors)


def worth_repeating(error: OttlaError) -> bool:
    """Whether a retry may succeed: the cause can go away without a change of settings."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, NetworkError | NoBrokerReachable | DeadlineExceeded) and not isinstance(error, FINAL)


def _combined(before: Attempt | None, attempt: Attempt) -> Attempt:
    if before is None:
        return attempt
    # Keep the first reason: the last attempts may only have had too little time.
    first = before.reason.partition(_LATER)[0]
    reason = first if attempt.reason == first else f"{first}{_LATER}{attempt.reason}"
    return Attempt(attempt.address, reason, before.seconds + attempt.seconds, before.tries + attempt.tries)


def headline(error: OttlaError) -> str:
    """The first line of the text, without the advice, which is added once, at the end."""
    return str(error).partition("\n")[0]
