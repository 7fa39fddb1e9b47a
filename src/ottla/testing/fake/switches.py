"""The part of `FakeKafka` that injects faults: one method for each kind.

Each call adds a rule to the dispatcher's table under its lock. `faults` defines what a rule means and when it applies.
"""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.testing.fake.dispatch import Dispatcher
from ottla.testing.fake.faults import Fault, Kind, When, new_fault


class FaultSwitches:
    """Faults on demand. Each call returns a `Fault` whose `hits` counts the requests that met it.

    `api` is a name such as "Produce", a key, or None for every request. `times=None` means until `clear_faults`. All
    methods raise `ConfigError` for invalid arguments.
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
        """Answer the next requests with this error code instead of handling them.

        If a response has an error code per partition, other topics and partitions are handled normally.
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
        """Delay the response, or with `When.BEFORE_HANDLING` the request."""
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
        """Close the connection without a response; with `When.AFTER_HANDLING` the request is handled first."""
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
        """Send the first `keep_bytes` of the response, including its 4-byte length (None: half), then close."""
        fault = new_fault(Kind.HALF, api, times=times, broker=broker)
        fault.keep_bytes = keep_bytes
        return self._add(fault)

    def silence(self, api: str | int | None, *, times: int | None = 1, broker: int | None = None) -> Fault:
        """Accept the request and never answer it, nor any later one on its connection, which stays open."""
        return self._add(new_fault(Kind.SILENCE, api, times=times, broker=broker))

    def clear_faults(self) -> None:
        """Remove all faults."""
        with self._dispatcher.changed:
            self._dispatcher.faults.rules.clear()

    def _add(self, fault: Fault) -> Fault:
        with self._dispatcher.changed:
            self._dispatcher.faults.rules.append(fault)
        return fault
