"""Tests of `alerts.py` with a fake broker: no Java, no containers, some milliseconds each.

The fixture `fake_kafka` comes with Ottla. Run them with a plain pytest:

    pip install ottla pytest
    pytest examples/testing
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from alerts import Alerts

import ottla
from ottla.codes import ErrorCode
from ottla.testing import FakeKafka, When


@contextmanager
def running(kafka: FakeKafka) -> Iterator[Alerts]:
    """The service on a thread, stopped at the end of the block."""
    service = Alerts(kafka.bootstrap)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(10)
    assert not thread.is_alive()


def measured(kafka: FakeKafka, *temperatures: str) -> None:
    """Temperatures of one boiler."""
    with ottla.Producer(kafka.bootstrap) as producer:
        producer.send_many("temperatures", [(b"boiler", value.encode()) for value in temperatures])


def alerts(kafka: FakeKafka) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of the alerts in the log."""
    return [(record.key, record.value) for record in kafka.records("alerts", 0)]


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Return when the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} seconds"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def topics(fake_kafka: FakeKafka) -> None:
    """The topics of the service."""
    fake_kafka.create_topic("temperatures")
    fake_kafka.create_topic("alerts")


def test_what_is_too_hot_is_an_alert(fake_kafka: FakeKafka) -> None:
    measured(fake_kafka, "79.5", "80.5", "81")
    with running(fake_kafka):
        wait_for(lambda: len(alerts(fake_kafka)) == 2)
    assert alerts(fake_kafka) == [(b"boiler", b"80.5 degrees"), (b"boiler", b"81 degrees")]


def test_a_broken_sensor_holds_up_no_other(fake_kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    measured(fake_kafka, "n/a", "90")
    with running(fake_kafka):
        wait_for(lambda: len(alerts(fake_kafka)) == 1)
    assert "no temperature: b'n/a'" in caplog.text


def test_an_alert_survives_a_change_of_leaders(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=3, topic="alerts")
    measured(fake_kafka, "99")
    with running(fake_kafka):
        wait_for(lambda: len(alerts(fake_kafka)) == 1)
    assert fault.hits == 3


def test_a_lost_answer_does_not_double_an_alert(fake_kafka: FakeKafka) -> None:
    measured(fake_kafka, "99")
    fault = fake_kafka.cut("Produce", when=When.AFTER_HANDLING, times=1)
    with running(fake_kafka):
        fake_kafka.wait_for_request("OffsetCommit", timeout=10)
    assert (fault.hits, alerts(fake_kafka)) == (1, [(b"boiler", b"99 degrees")])


def test_what_was_committed_is_not_read_again(fake_kafka: FakeKafka) -> None:
    measured(fake_kafka, "90")
    with running(fake_kafka):
        fake_kafka.wait_for_request("OffsetCommit", timeout=10)
    measured(fake_kafka, "91")
    with running(fake_kafka):
        wait_for(lambda: len(alerts(fake_kafka)) == 2)
    assert [value for _, value in alerts(fake_kafka)] == [b"90 degrees", b"91 degrees"]
