"""The retry loop of a call: what is retried, how long it backs off, and the error at the end."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config import Retry
from ottla.errors import (
    Attempt,
    AuthenticationFailed,
    BrokerError,
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    NoBrokerReachable,
    OttlaError,
    SecurityMismatch,
    WireError,
)
from ottla.net import attempts as attempts_module
from ottla.net.attempts import Attempts
from ottla.net.deadline import Deadline
from ottla.net.waiting import Flag

LOST = ConnectionLost("a:1", "cut")


def attempts(seconds: float, retry: Retry | None = None, pause: Flag | None = None) -> Attempts:
    return Attempts(
        "counting sheep",
        deadline=Deadline.after(seconds),
        retry=retry or Retry(initial=0.001, maximum=0.002),
        chance=random.Random(1),
        pause=pause or Flag(),
    )


def fail_until_raised(tries: Attempts, *errors: OttlaError) -> OttlaError:
    for number in range(100_000):
        try:
            tries.failed(errors[number % len(errors)])
        except OttlaError as exc:
            return exc
    raise AssertionError("never gave up")


@settings(deadline=None)
@given(
    st.floats(0.001, 10),
    st.floats(1, 100),
    st.floats(1, 5),
    st.floats(0, 1),
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
)
def test_waits_grow_to_the_maximum_and_jitter_only_shortens_them(
    initial: float, times: float, factor: float, jitter: float, failures: int, chance: float
) -> None:
    retry = Retry(initial=initial, maximum=initial * times, factor=factor, jitter=jitter)
    wait = retry.wait(failures, chance)
    longest = retry.wait(failures, 0.0)
    assert longest * (1 - jitter) <= wait * (1 + 1e-9)
    assert wait <= longest <= retry.maximum
    assert retry.wait(failures + 1, 0.0) >= longest


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailed("a:1", "wrong password"),
        SecurityMismatch("a:1", "untrusted"),
        BrokerError(ErrorCode.topic_already_exists, "creating"),
        WireError("nonsense"),
        ConfigError("wrong"),
    ],
)
def test_what_another_attempt_would_only_repeat_is_raised_at_once(error: OttlaError) -> None:
    with pytest.raises(type(error)) as caught:
        attempts(10).failed(error)
    assert caught.value is error


def test_retriable_failures_are_waited_out_until_the_deadline() -> None:
    started = time.monotonic()
    error = fail_until_raised(attempts(0.2), LOST, BrokerError(ErrorCode.not_leader_or_follower, "asking"))
    assert 0.1 < time.monotonic() - started < 3
    assert isinstance(error, DeadlineExceeded)
    assert error.what == "counting sheep"
    assert set(error.causes) == {"a:1: cut", "asking: NOT_LEADER_OR_FOLLOWER (error 6)"}


def test_each_cause_is_reported_once_and_the_newest_last() -> None:
    first, second = ConnectionLost("a:1", "cut"), ConnectionLost("b:2", "refused")
    tries = attempts(0.05)
    tries.failed(second)
    tries.failed(first)
    error = fail_until_raised(tries, second)
    assert isinstance(error, DeadlineExceeded)
    assert error.causes == ("a:1: cut", "b:2: refused")


def test_advice_of_the_last_error_is_given_once() -> None:
    error = fail_until_raised(attempts(0.05), BrokerError(ErrorCode.leader_not_available, "asking"))
    assert str(error).count("hint:") == 1


def test_attempts_at_an_address_are_added_up() -> None:
    round_failed = NoBrokerReachable((Attempt("a:1", "refused", 0.5), Attempt("b:2", "silent", 2.0)), 2.5, "look")
    error = fail_until_raised(attempts(0.05), round_failed)
    assert isinstance(error, NoBrokerReachable)
    first, second = error.attempts
    assert (first.address, first.reason, second.address) == ("a:1", "refused", "b:2")
    assert first.tries == second.tries > 1
    assert second.seconds == pytest.approx(2.0 * second.tries)
    assert error.seconds < 1
    assert "hint: look" in str(error)


def test_the_first_reason_of_an_address_is_kept_beside_the_last() -> None:
    rounds = [NoBrokerReachable((Attempt("a:1", reason, 0.1),), 0.1) for reason in ("refused", "silent", "too late")]
    tries = attempts(0.1)
    for error in rounds:
        tries.failed(error)
    summary = fail_until_raised(tries, rounds[-1])
    assert isinstance(summary, NoBrokerReachable)
    assert summary.attempts[0].reason == "refused; later: too late"


def test_one_round_without_answer_at_the_very_end_does_not_hide_the_causes() -> None:
    tries = attempts(0.05, Retry(initial=0.02, maximum=0.02))
    tries.failed(BrokerError(ErrorCode.not_leader_or_follower, "asking"))
    time.sleep(tries.deadline.remaining())
    error = fail_until_raised(tries, NoBrokerReachable((Attempt("a:1", "no time", 0.0),), 0.0))
    assert isinstance(error, DeadlineExceeded)
    assert "NOT_LEADER" in str(error)
    assert "hint: " in str(error)


def test_a_topic_that_stays_unknown_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "UNKNOWN_TOPIC_SECONDS", 0.05)
    started = time.monotonic()
    error = fail_until_raised(attempts(10), BrokerError(ErrorCode.unknown_topic_or_partition, "topic x"))
    assert time.monotonic() - started < 3
    assert isinstance(error, BrokerError)


def test_a_wait_longer_than_the_deadline_leaves_time_for_a_last_attempt() -> None:
    tries = attempts(1.0, Retry(initial=0.05, maximum=100, factor=1000, jitter=0))
    started = time.monotonic()
    tries.failed(LOST)
    tries.failed(LOST)
    assert not tries.deadline.expired()
    with pytest.raises(DeadlineExceeded):
        tries.failed(LOST)
    assert time.monotonic() - started < 1.0


def test_closing_ends_the_wait() -> None:
    pause = Flag()
    pause.set()
    with pytest.raises(ConnectionLost):
        attempts(10, Retry(initial=5, maximum=5), pause).failed(LOST)


def test_a_deadline_counts_down_and_takes_the_sooner() -> None:
    deadline = Deadline.after(10)
    assert 9 < deadline.remaining() <= 10
    assert not deadline.expired()
    assert deadline.sooner(100).at == deadline.at
    assert deadline.sooner(1).remaining() <= 1
    assert deadline.seconds == pytest.approx(10)
    past = Deadline.after(-1)
    assert past.expired()
    assert past.remaining() == 0
