"""The part of `FakeKafka` that makes things go wrong: one call for each kind of fault.

Each call adds a rule to the dispatcher's table under its lock; what a rule means and when it applies is in `faults`.
"""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.testing.fake.dispatch import Dispatcher
from ottla.testing.fake.faults import Fault, Kind, When, new_fault


class FaultSwitches:
    """Things that go wrong on demand. Each call returns a `Fault` whose `hits` tells how many met it.

    `api` is a name such as "Produce" or a key, None for every request; `times` None means until
    `clear_faults`.
    """

    _dispatcher: Dispatcher

    def fail(
        self,
        api: str | int,
        error: ErrorCode | int,
        *,
        times: int | None = 1,
        broker: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> Fault:
        """Answer the next requests with this error code instead of carrying them out.

        Where the answer has a code for each partition, those of other topics and partitions are carried out.
        """
        fault = new_fault(Kind.FAIL, api, times=times, broker=broker, topic=topic, partition=partition)
        fault.error = ErrorCode(error)
        return self._add(fault)

    def delay(
        self,
        api: str | int | None,
        seconds: float,
        *,
        times: int | None = None,
        broker: int | None = None,
        when: When = When.AFTER_HANDLING,
    ) -> Fault:
        """Hold the answer back, or with `When.BEFORE_HANDLING` the request."""
        fault = new_fault(Kind.DELAY, api, times=times, broker=broker)
        fault.seconds, fault.when = seconds, when
        return self._add(fault)

    def cut(
        self,
        api: str | int | None,
        *,
        times: int | None = 1,
        when: When = When.BEFORE_HANDLING,
        broker: int | None = None,
    ) -> Fault:
        """Close the connection instead of answering; with `When.AFTER_HANDLING` what was asked is done."""
        fault = new_fault(Kind.CUT, api, times=times, broker=broker)
        fault.when = when
        return self._add(fault)

    def half_response(
        self,
        api: str | int | None,
        *,
        times: int | None = 1,
        keep_bytes: int | None = None,
        broker: int | None = None,
    ) -> Fault:
        """Send the first `keep_bytes` of the answer with its 4 bytes of length (None: half of it), then close."""
        fault = new_fault(Kind.HALF, api, times=times, broker=broker)
        fault.keep_bytes = keep_bytes
        return self._add(fault)

    def silence(self, api: str | int | None, *, times: int | None = 1, broker: int | None = None) -> Fault:
        """Take the request and never answer it, nor any other on its connection, which stays open."""
        return self._add(new_fault(Kind.SILENCE, api, times=times, broker=broker))

    def clear_faults(self) -> None:
        """No fault is in force any more."""
        with self._dispatcher.changed:
            self._dispatcher.faults.rules.clear()

    def _add(self, fault: Fault) -> Fault:
        with self._dispatcher.changed:
            self._dispatcher.faults.rules.append(fault)
        return fault
