"""What becomes of a unit that a handler is called with, and the event that tells of it.

A handler and a unit come in; the unit hears that it is done or has failed. Who takes units is not known here.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.engines.fleet.handlers import call
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.record_sharing import log_failure
from ottla.engines.fleet.unit import Unit, reason_of
from ottla.events import UnitEnded


def handle(handler: Callable[[Unit], object], unit: Unit) -> None:
    """On a thread of ours, where no interrupt comes from outside: whatever a handler raises is its own failure."""
    try:
        try:
            call(handler, unit)
        except BaseException as error:
            log_failure(unit, error)
            if unit.ending is None:
                unit.fail(error)
        else:
            if unit.ending is None:
                unit.done()
    except Exception as error:
        log_failure(unit, error)


def ended(unit: Unit, ending: Ending, error: BaseException | None, *, host: str, broker_id: int) -> UnitEnded:
    """What is told of a unit at its end."""
    one = unit.range
    return UnitEnded(
        one.topic,
        one.partition,
        start=one.start,
        stop=one.stop,
        reached=unit.reached,
        status=ending.value,
        attempt=unit.attempt,
        records=unit.records_read,
        payload_bytes=unit.bytes_read,
        wasted_records=unit.records_wasted,
        seconds=unit.seconds,
        broker_id=broker_id,
        host=host,
        reason="" if error is None else reason_of(error),
    )
