"""Text from outside is safe to show."""

from __future__ import annotations

import json
import sys

import pytest

from ottla.errors import BrokerError, ConnectFailed, CorruptBatch, DeadlineExceeded, OttlaError
from ottla.events import ConnectionDown
from ottla.model import OffsetRange, TopicPartition
from ottla.text import CONTROL, CONTROL_BYTES, escaped_in_json, printable, redacted

HOSTILE = "\x1b]0;x\x07\nFORGED\x9b\u202e\udc80"
WRITTEN = r"\x1b]0;x\x07\nFORGED\x9b\u202e\udc80"


@pytest.mark.parametrize("text", ["", "clicks", "Käse 🧀", "नमस्ते", "👩\u200d🔬", "a b", "\\x1b"])
def test_ordinary_text_stays(text: str) -> None:
    assert printable(text) == text


def test_what_steers_a_terminal_is_written_out() -> None:
    assert printable(HOSTILE) == WRITTEN
    assert printable("a\nb\tc\r", keep="\n") == r"a" + "\n" + r"b\tc\r"


def test_json_means_the_same_afterwards() -> None:
    text = HOSTILE + "\x7f\U000e0041"
    written = escaped_in_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(written) == text
    assert not CONTROL.search(written)


def test_bytes_are_judged_as_their_text_is() -> None:
    for number in range(0x7F, sys.maxunicode + 1):
        if not 0xD800 <= number < 0xE000:
            assert bool(CONTROL.match(chr(number))) == bool(CONTROL_BYTES.fullmatch(chr(number).encode())), hex(number)


@pytest.mark.parametrize(
    "error",
    [
        OttlaError(HOSTILE.replace("\n", "")),
        BrokerError(44, f"creating {HOSTILE}", HOSTILE),
        ConnectFailed(f"{HOSTILE}:1", HOSTILE),
        CorruptBatch(HOSTILE, base_offset=1, position=2, topic=HOSTILE, partition=3),
        DeadlineExceeded(HOSTILE, 1.0, (HOSTILE, HOSTILE)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_printable(error: OttlaError) -> None:
    lines = str(error).split("\n")
    assert not [line for line in lines if CONTROL.search(line) or line.strip().startswith("FORGED")]


def test_events_and_partitions_are_printable() -> None:
    event = ConnectionDown(broker_id=1, address=HOSTILE, reason=HOSTILE)
    for text in (str(event), str(TopicPartition(HOSTILE, 1)), str(OffsetRange(HOSTILE, 1, 2, 3))):
        assert not CONTROL.search(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://***@h:1/0"),
        ("https://u:p%40w@h/a?x=1&api_key=abc&y=2", "https://***@h/a?x=1&api_key=***&y=2"),
        ("sasl.password=abc, retries=3", "sasl.password=***, retries=3"),
        ("u:p@a:1,u:p@b:2", "***@a:1,***@b:2"),
        ("localhost:9092 and clicks@9", "localhost:9092 and ***@9"),
        ("plain text", "plain text"),
    ],
)
def test_secrets_in_addresses_and_settings_are_left_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
