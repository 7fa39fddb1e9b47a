"""`--format`, plain values and keys: what they print, and what is said when a format is wrong."""

from __future__ import annotations

import pytest

from ottla.cli.consume import template
from ottla.cli.consume.formats import Values

from .columns import Row, batch, values

RECORD = Row(b"x\xff", key=b"k", headers=[("trace", b"42"), ("none", None), ("trace", b"")], offset=7)
BARE = Row(None, timestamp=-1, offset=8)


def shown(form: str, *rows: Row, null: bytes = b"") -> bytes:
    return bytes(template.parse(form, null=null).block(batch(*rows)))


@pytest.mark.parametrize(
    ("form", "expected", "of_bare"),
    [
        (r"{topic}-{partition}@{offset}\n", b"clicks-3@7\n", b"clicks-3@8\n"),
        ("{timestamp}|{timestamp:iso}", b"2026-01-01T00:00:00.250Z|2026-01-01T00:00:00.250Z", b"|"),
        ("{timestamp:ms}|{timestamp:s}|{timestamp_type}", b"1767225600250|1767225600|CreateTime", b"-1|0|CreateTime"),
        ("{key}={value}", b"k=x\xff", b"="),
        ("{value:hex} {value:base64} {value:json}", b'78ff eP8= {"base64":"eP8="}', b"  null"),
        ("{key:json} {key:size} {key_size} {value_size}", b'"k" 1 1 2', b"null -1 -1 -1"),
        ("{headers}", b"trace=42,none,trace=", b""),
        ("{headers:json}", b'[["trace","42"],["none",null],["trace",""]]', b"[]"),
        ("{header.trace:json}{header.none:json}{header.x:json}", b'""nullnull', b"nullnullnull"),
        (r"\t\x41\\{{}}\0", b"\tA\\{}\0", b"\tA\\{}\0"),
        ("Käse", "Käse".encode(), "Käse".encode()),
        ("", b"", b""),
    ],
)
def test_a_format_is_filled_in(form: str, expected: bytes, of_bare: bytes) -> None:
    assert shown(form, RECORD) == expected
    assert shown(form, BARE) == of_bare
    assert shown(form, RECORD, BARE, RECORD) == expected + of_bare + expected


def test_a_null_can_have_a_text_of_its_own() -> None:
    rows = Row(None), Row(b"", key=b"k")
    assert shown(r"{key}:{value}:{value_size}\n", *rows, null=b"NULL") == b"NULL:NULL:-1\nk::0\n"


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            "{foo}",
            "no field {foo}; use one of topic, partition, offset, timestamp, timestamp_type, key, value,",
        ),
        ("{}", "no field {}"),
        ("{header.}", "no field {header.}"),
        ("{value:upper}", "no {value:upper}; use one of {value}, {value:hex}, {value:base64}, {value:json},"),
        ("{value!r}", "no {value!r}"),
        ("{topic:hex}", "no {topic:hex}; use {topic}"),
        ("{value", "'{value': expected '}' before end of string; a field is written {value}, a brace itself {{ or }}"),
        ("value}", "Single '}' encountered"),
    ],
)
def test_a_wrong_format_names_what_is_right(form: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is what matters
        template.parse(form)
    assert reason in str(error.value)


def test_a_format_asks_only_for_the_columns_that_it_shows() -> None:
    assert template.parse("{key_size} {header.x} {timestamp:s}").columns == {"key", "headers", "timestamp"}
    assert template.parse("tick").columns == {"offset"}
    assert Values().columns == {"value"}


def test_values_are_lines_of_the_bytes_themselves() -> None:
    assert bytes(Values().block(values(b"a", b"\xff\n", b"", None))) == b"a\n\xff\n\n\n\n"
    assert bytes(Values(null=b"NULL").block(values(b"a", None))) == b"a\nNULL\n"
    assert bytes(Values().block(values(b"a", b"b", b"c", b"d").slice(1, 2))) == b"b\nc\n"


def test_a_key_stands_before_its_separator_and_no_key_before_none() -> None:
    rows = batch(Row(b"v", key=b"k"), Row(b"v"), Row(b"", key=b""))
    assert bytes(Values(separator=b"\t").block(rows)) == b"k\tv\nv\n\t\n"


HOSTILE = "ž\t\n\x1b[31m\x9b\u202e".encode() + b"\xff"
WRITTEN_OUT = "ž\t\n\\x1b[31m\\x9b\\u202e\\xff".encode()


def test_for_a_terminal_control_characters_of_records_are_written_out() -> None:
    records = batch(Row(HOSTILE, key=HOSTILE, headers=[("h", HOSTILE)]), Row(None))
    parsed = template.parse(r"\x1b[1m{key}|{value}|{value:hex}|{headers}|{header.h}\n", null=b"\x1b", readable=True)
    first, second = bytes(parsed.block(records)).split(b"\x1b[1m")[1:]
    fields = (WRITTEN_OUT, WRITTEN_OUT, HOSTILE.hex().encode(), b"h=" + WRITTEN_OUT, WRITTEN_OUT)
    assert first == b"|".join(fields) + b"\n"
    assert second == b"\x1b|\x1b|\x1b||\x1b\n"
    values = Values(separator=b":", null=b"", readable=True)
    assert bytes(values.block(records)) == WRITTEN_OUT + b":" + WRITTEN_OUT + b"\n" + b"\n"
