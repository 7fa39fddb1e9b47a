"""Every wrong setting gets one clear error that names it and what is accepted; correct ones are combined by topic."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from ottla import Batching, Buffering, ByColumn, Producer, Spool, Sticky, TopicOptions
from ottla.errors import ConfigError
from ottla.net.discovery import OnUnknownTopic
from ottla.produce.options import Settings, WhenFull, settings_from
from ottla.wire.batch import Codec

_SEVEN: Any = 7


def of(kind: Any, *values: Any, **options: Any) -> Callable[[], object]:
    """Construct it when called. Types are not checked, as in the programs that these errors are for."""
    return lambda: kind(*values, **options)


WRONG: list[tuple[str, Callable[[], object], str]] = [
    # Batches
    (
        "batch bytes too few",
        of(Batching, bytes=10),
        r"Batching\(bytes=...\) must be a whole number from 62 to .*, got 10",
    ),
    ("batch bytes of text", of(Batching, bytes="1"), r"Batching\(bytes=...\) must be a whole number"),
    ("batch bytes fraction", of(Batching, bytes=1e6), r"Batching\(bytes=...\) must be a whole number"),
    ("no records", of(Batching, records=0), r"Batching\(records=...\) must be a whole number from 1 to .*, got 0"),
    ("records of text", of(Batching, records="1"), r"Batching\(records=...\) must be a whole number"),
    ("negative linger", of(Batching, linger=-1), r"Batching\(linger=...\) must be seconds from 0 to .*, got -1"),
    ("linger of text", of(Batching, linger="5 ms"), r"Batching\(linger=...\) must be seconds .*'5 ms'"),
    ("linger true", of(Batching, linger=True), r"Batching\(linger=...\) must be seconds .*True"),
    ("linger not a number", of(Batching, linger=math.nan), r"Batching\(linger=...\) must be seconds .*nan"),
    # Memory
    ("small buffer", of(Buffering, bytes=1000), r"Buffering\(bytes=...\) must be a whole number from 1,048,576 to"),
    ("buffer of text", of(Buffering, bytes="64M"), r"Buffering\(bytes=...\) must be a whole number .*'64M'"),
    ("buffer true", of(Buffering, bytes=True), r"Buffering\(bytes=...\)"),
    ("policy of text", of(Buffering, when_full="wait"), r"Buffering\(when_full=...\) must be a WhenFull.*'wait'"),
    ("endless wait", of(Buffering, wait=math.inf), r"Buffering\(wait=...\) must be seconds from 0 to 2,000,000"),
    # The spool
    ("no path", of(Spool, ""), "Spool needs the path of a directory"),
    ("small spool", of(Spool, "x", max_bytes=5), r"Spool\(max_bytes=...\) must be a whole number from 1,048,576"),
    ("spool policy", of(Spool, "x", when_full=1), r"Spool\(when_full=...\) must be a WhenFull"),
    ("spool after", of(Spool, "x", after=-1), r"Spool\(after=...\) must be seconds"),
    # Options of topics
    ("acks 2", of(Settings, acks=2), "acks must be 'all', 1 or 0, got 2"),
    ("acks true", of(Settings, acks=True), "acks must be 'all', 1 or 0, got True"),
    ("acks list", of(Settings, acks=[]), r"acks must be 'all', 1 or 0, got \[\]"),
    ("codec", of(Settings, compression="zip"), "compression 'zip' is not one of none, gzip, snappy, lz4, zstd"),
    ("codec number", of(Settings, compression=4), "compression 4 is not one of none, gzip"),
    ("level", of(Settings, compression="gzip", level=10), "compression gzip has levels 1 to 9, got 10"),
    ("level of text", of(Settings, compression="gzip", level="9"), "level must be an int, got '9'"),
    ("level without levels", of(Settings, compression="snappy", level=1), "compression snappy has no levels"),
    ("batching", of(Settings, batching={"linger": 1}), r"batching must be a Batching, got a dict"),
    (
        "no time",
        of(Settings, delivery_timeout=0),
        r"delivery_timeout=...\) must be seconds from 0.001 to .*, got 0",
    ),
    ("time of text", of(Settings, delivery_timeout="1m"), r"delivery_timeout=...\) must be seconds"),
    ("record bytes", of(Settings, max_record_bytes=0), "max_record_bytes must be a whole number from 1 to"),
    ("record bytes of text", of(Settings, max_record_bytes="1M"), "max_record_bytes must be a whole number"),
    ("partitioner", of(Settings, partitioner=3), r"partitioner is 3; accepted are a function of \(key, value"),
    ("column partitioner", of(ByColumn, 3), r"ByColumn needs a function of \(keys, values, partitions\), got 3"),
    (
        "strategy",
        of(Settings, strategy="random"),
        r"strategy is 'random'; accepted are Sticky\(records\), RoundRobin",
    ),
    ("strategy class", of(Settings, strategy=Sticky), "strategy is <class .*Sticky'>; accepted are Sticky"),
    ("sticky", of(Sticky, 0), r"Sticky\(records=...\) must be a whole number from 1 on, got 0"),
    (
        "unknown topic",
        of(Settings, unknown_topic="create"),
        "unknown_topic must be an OnUnknownTopic, got 'create'",
    ),
    ("hook", of(Settings, batch_hook=1), "batch_hook must be callable, got 1"),
    ("oversize", of(Settings, on_oversize=1), "on_oversize must be callable, got 1"),
    ("idempotent", of(Settings, idempotent="no"), "idempotent must be a bool, got 'no'"),
    (
        "unknown option",
        of(settings_from, {"linger_ms": 5}),
        r"Producer has no option 'linger_ms': it is batching=Batching\(linger=...\), in seconds; the options .* acks,",
    ),
    (
        "unknown topic option",
        of(TopicOptions, ack=1),
        "TopicOptions has no option 'ack': did you mean acks\\?; the options of a topic are",
    ),
    # The producer
    ("bootstrap", of(Producer, "host:notaport"), "is not HOST:PORT"),
    ("no bootstrap", of(Producer, ""), "no bootstrap address given"),
    (
        "a topic's value",
        of(Producer, "h", topics={"t": TopicOptions(acks=_SEVEN)}),
        "acks must be 'all', 1 or 0, got 7",
    ),
    ("topics of dicts", of(Producer, "h", topics={"t": {"acks": 1}}), r"topics\['t'\] must be a TopicOptions"),
    ("topics a list", of(Producer, "h", topics=["t"]), "topics must be a Mapping"),
    ("buffering", of(Producer, "h", buffering=1 << 20), "buffering must be a Buffering, got 1048576"),
    ("spool a path", of(Producer, "h", spool="dir"), "spool must be a Spool, got a str"),
    ("long name", of(Producer, "h", transactional_id="é" * 16_384), "transactional_id has 32,768 bytes"),
    ("on_failed", of(Producer, "h", on_failed=1), "on_failed must be callable, got 1"),
    ("unknown producer option", of(Producer, "h", linger=1), "Producer has no option 'linger'"),
]


@pytest.mark.parametrize(("make", "text"), [pytest.param(make, text, id=name) for name, make, text in WRONG])
def test_a_wrong_setting_is_named_with_what_is_accepted(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


RIGHT: list[dict[str, Any]] = [
    {},
    {"acks": 0},
    {"acks": 1, "idempotent": False},
    {"compression": "ZSTD", "level": -5},
    {"compression": Codec.GZIP, "level": 1},
    {"delivery_timeout": math.inf},
    {"batching": Batching(bytes=62, records=1, linger=0)},
    {"strategy": lambda records, partitions: 0},
    {"partitioner": lambda key, value, partitions: None},
    {"unknown_topic": OnUnknownTopic.CREATE},
]


@pytest.mark.parametrize("options", RIGHT, ids=lambda options: re.sub(" at 0x[0-9a-f]+", "", str(options)))
def test_right_settings_are_taken(options: dict[str, Any]) -> None:
    settings = settings_from(options)
    assert isinstance(settings.codec, Codec)
    assert settings.acks_code in (-1, 0, 1)


def test_what_a_topic_does_not_say_is_as_for_the_rest() -> None:
    rest = settings_from({"acks": 1, "compression": "gzip", "level": 9, "delivery_timeout": 5.0})
    own = TopicOptions(acks="all", max_record_bytes=10).apply_to(rest)
    assert (own.acks, own.codec, own.level, own.delivery_timeout) == ("all", Codec.GZIP, 9, 5.0)
    assert own.max_record_bytes == 10
    assert rest.max_record_bytes == 1_000_000


def test_another_codec_does_not_take_over_the_level() -> None:
    rest = settings_from({"compression": "zstd", "level": 19})
    assert TopicOptions(compression="gzip").apply_to(rest).level == 6
    assert TopicOptions(compression="snappy").apply_to(rest).level is None


def test_options_say_what_they_are() -> None:
    assert repr(TopicOptions(acks=1, compression="lz4")) == "TopicOptions(acks=1, compression='lz4')"
    assert WhenFull.DROP_OLDEST.value == "drop oldest"
