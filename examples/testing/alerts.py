"""A small service: it reads temperatures, and writes an alert for each that is too high.

    ottla cluster up --port 9092 --topic temperatures:3 --topic alerts
    python examples/testing/alerts.py

`test_alerts.py` beside it tests it without a broker.
"""

from __future__ import annotations

import logging
import os
import signal

import ottla

LIMIT = 80.0
_log = logging.getLogger(__name__)


def is_above(limit: float, value: bytes | None) -> bool:
    """Return whether this is a temperature above the limit. What is no number is a broken sensor, and logged."""
    try:
        return float(value or b"") > limit
    except ValueError:
        _log.warning("no temperature: %r", value)
        return False


class Alerts:
    """Alerts at least once: a temperature counts as read when its alert is acknowledged."""

    def __init__(self, bootstrap: str, *, limit: float = LIMIT) -> None:
        self._limit = limit
        self._producer = ottla.Producer(bootstrap, delivery_timeout=30)
        self._consumer = ottla.Consumer(bootstrap, group="alerts", topics="temperatures", commit_every=None)

    def run(self) -> None:
        """Work until `stop`. Raises what a broker refuses, and `NotDelivered` after 30 seconds of outage."""
        with self._producer as producer, self._consumer as consumer:
            for records in consumer:
                for key, value in zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True):
                    if is_above(self._limit, value):
                        producer.send("alerts", b"%s degrees" % value, key=key)
                producer.flush()
                consumer.commit()

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, and from a signal handler."""
        self._consumer.stop()


if __name__ == "__main__":
    service = Alerts(os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    service.run()
