"""How units end: calls a handler with a unit and ends it, logs failed attempts, and builds the event of an ending.

A handler and a unit come in; the unit is ended as done or failed. This module takes no units and knows no store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.engines.fleet.handlers import call
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.unit import Unit, reason_of
from ottla.errors import LeaseLost
from ottla.events import UnitEnded

_log = logging.getLogger(__name__)


def handle(handler: Callable[[Unit], object], unit: Unit) -> None:
    """Call a handler with a unit, on a worker thread, and end the unit unless the handler did. Does not raise."""
    try:
        try:
            call(handler, unit)
        except BaseException as error:
            # No signal arrives on a worker thread: whatever the handler raises, even SystemExit, is its own failure.
            log_failure(unit, error)
            if unit.ending is None:
                unit.fail(error)
        else:
            if unit.ending is None:
                unit.done()
    except Exception as error:
        log_failure(unit, error)


def log_failure(unit: Unit, error: BaseException) -> None:
    """Log that an attempt has failed, or that its lease was lost."""
    if isinstance(error, LeaseLost):
        _log.warning("%s", error)
    else:
        _log.warning("%s failed (attempt %d): %s", unit.range, unit.attempt, reason_of(error))


def ended(unit: Unit, ending: Ending, error: BaseException | None, *, host: str, broker_id: int) -> UnitEnded:
    """Return the event for a unit that has ended."""
    return UnitEnded(
        unit.range.topic,
        unit.range.partition,
        start=unit.range.start,
        stop=unit.range.stop,
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
