"""Messages of a connection are told apart the same way wherever the network cuts it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.gateway.datagram.format import Message, write
from ottla.gateway.receiving.arrivals import readonly
from ottla.gateway.receiving.cutting import Framing, SizedCutting, SyslogCutting
from ottla.gateway.receiving.streams import Cutter
from ottla.wire.kernels.framing import TRUNCATED, WHOLE

_MOST_BYTES = 40
Frames = list[tuple[bytes, int]]


def _cut(cutter: Cutter, pieces: list[bytes]) -> tuple[Frames, bytes, bool]:
    """All frames, what is left, and whether the stream is lost."""
    frames: Frames = []
    pending = b""
    for piece in pieces:
        pending += piece
        cut = cutter(readonly(np.frombuffer(pending, np.uint8)))
        frames += [(pending[start:stop], mark) for start, stop, mark in cut.spans.tolist()]
        pending = pending[cut.consumed :]
        if cut.is_lost:
            return frames, pending, True
    return frames, pending, False


def _syslog(stream: bytes, framing: Framing = Framing.DETECT) -> tuple[Frames, bytes, bool]:
    return _cut(SyslogCutting(framing, most_bytes=_MOST_BYTES)(), [stream])


_message = st.binary(min_size=1, max_size=_MOST_BYTES - 1).map(
    lambda text: b"<" + text.replace(b"\n", b"-").replace(b"\0", b"-")
)
_counted = _message.map(lambda message: b"%d %s" % (len(message), message))
_line = st.tuples(_message, st.sampled_from([b"\n", b"\0", b"\r\n"])).map(b"".join)


@given(st.lists(_counted | _line | st.binary(max_size=120), max_size=6), st.data())
def test_frames_do_not_depend_on_where_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:stop] for start, stop in zip([0, *edges], [*edges, len(stream)], strict=True)]
    make = SyslogCutting(Framing.DETECT, most_bytes=_MOST_BYTES)
    frames_of_pieces, rest, is_lost = _cut(make(), pieces)
    assert (frames_of_pieces, is_lost) == ((whole := _cut(make(), [stream]))[0], whole[2])
    assert is_lost or rest == whole[1]


@given(st.lists(st.tuples(_message, st.booleans()), max_size=200))
def test_counted_frames_and_lines_may_alternate(messages: list[tuple[bytes, bool]]) -> None:
    stream = b"".join(b"%d %s" % (len(text), text) if counted else text + b"\n" for text, counted in messages)
    assert _syslog(stream) == ([(text, WHOLE) for text, _ in messages], b"", False)


def test_empty_lines_and_what_senders_put_behind_a_counted_frame_are_no_messages() -> None:
    assert _syslog(b"\n\n5 <1>ab\n\0\r\n<2>c\n\n") == ([(b"<1>ab", WHOLE), (b"<2>c", WHOLE)], b"", False)


def test_a_message_that_is_too_long_is_truncated_and_the_next_one_is_found() -> None:
    long = b"<1>" + b"x" * 100
    kept = long[:_MOST_BYTES]
    assert _syslog(long + b"\n<2>b\n") == ([(kept, TRUNCATED), (b"<2>b", WHOLE)], b"", False)
    assert _syslog(b"103 " + long + b"<2>b\n") == ([(kept, TRUNCATED), (b"<2>b", WHOLE)], b"", False)
    # What is passed over is not kept.
    frames, pending, is_lost = _cut(SyslogCutting(Framing.DETECT, most_bytes=_MOST_BYTES)(), [b"9999999 " + long] * 3)
    assert (frames, pending, is_lost) == ([(kept, TRUNCATED)], b"", False)


@pytest.mark.parametrize(
    ("stream", "framing"),
    [
        (b"12345678 <1>a", Framing.DETECT),
        (b"12x<1>a", Framing.DETECT),
        (b"05 <1>ab", Framing.DETECT),
        (b"<1>a\n", Framing.COUNTED),
        (b" 5 <1>ab", Framing.COUNTED),
    ],
)
def test_where_no_frame_begins_the_stream_is_lost(stream: bytes, framing: Framing) -> None:
    assert _syslog(stream, framing) == ([], stream, True)


def test_a_wrong_count_is_noticed_at_the_next_frame() -> None:
    assert _syslog(b"4 <1>abc\n5 <1>ab") == ([(b"<1>a", WHOLE)], b"bc\n5 <1>ab", True)


def test_lines_only_takes_lines_that_begin_with_digits() -> None:
    assert _syslog(b"12 monkeys\n5 <1>ab\n", Framing.LINES)[0] == [(b"12 monkeys", WHOLE), (b"5 <1>ab", WHOLE)]


def _sized(least: int = 8, most: int = 100) -> Callable[[], Cutter]:
    return SizedCutting(least_bytes=least, most_bytes=most)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 50))
def test_messages_with_their_size_are_found_in_any_portions(values: list[bytes], step: int) -> None:
    messages = [write(Message(b"t", value)) for value in values]
    stream = b"".join(messages)
    pieces = [stream[start : start + step] for start in range(0, len(stream), step)]
    assert _cut(_sized()(), pieces) == ([(message, WHOLE) for message in messages], b"", False)


@pytest.mark.parametrize("size", [7, 101, -1, -(2**31), 2**31 - 1])
def test_a_size_outside_the_limits_ends_the_stream(size: int) -> None:
    stream = size.to_bytes(4, "big", signed=True) + b"x"
    assert _cut(_sized()(), [stream]) == ([], stream, True)


def test_there_may_be_thousands_of_messages_in_one_piece() -> None:
    stream = b"<1>a\n" * 5000
    assert len(_syslog(stream)[0]) == 5000
    assert len(_cut(_sized()(), [write(Message(b"t", b"v")) * 5000])[0]) == 5000
