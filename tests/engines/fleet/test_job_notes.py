"""Jobs, results and errors lie in a store as plain values, and come back as what they were."""

from __future__ import annotations

import pytest

from ottla import errors
from ottla.engines.fleet.job_notes import JobNote, ResultNote, job_note, result_note
from ottla.errors import Attempt, BrokerError, CorruptBatch, ErrorCode, NoBrokerReachable, OffsetsLost, OttlaError
from ottla.model import OffsetRange

UNIT = OffsetRange("clicks", 3, 10, 20)


def test_a_job_and_a_result_come_back_as_they_were() -> None:
    job = JobNote(kind="archive", name="1", row={"path": "/data", "options": {"level": None}})
    assert job_note(job.encoded()) == job
    result = ResultNote(UNIT, {"files": [], "size": 2**62})
    assert result_note(result.encoded()) == result


@pytest.mark.parametrize(
    "error",
    [
        OffsetsLost("clicks", 3, start=10, stop=15, resume=15, reason="retention was faster"),
        BrokerError(ErrorCode.topic_authorization_failed, "reading clicks", "ask somebody"),
        NoBrokerReachable((Attempt("one:9092", "refused", 0.1, 3),), 60.0, "start it"),
        CorruptBatch("its checksum is wrong", base_offset=12, position=7),
        errors.LakeConflict("/data/clicks", "somebody was faster"),
        errors.InputError("nobody can do this"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_our_own_keeps_its_class_its_text_and_its_fields(error: OttlaError) -> None:
    error.add_note("while it was worked on")
    decoded = result_note(ResultNote(UNIT, None, error).encoded()).error
    assert type(decoded) is type(error)
    assert str(decoded) == str(error)
    assert decoded.__dict__ == error.__dict__


def test_an_error_that_others_do_not_have_comes_back_as_the_nearest_that_they_have() -> None:
    class Special(errors.FleetError):
        pass

    decoded = result_note(ResultNote(UNIT, None, Special("odd")).encoded()).error
    assert type(decoded) is errors.FleetError
    assert str(decoded) == "odd"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x80\x05.",
        b"[]",
        b'{"unit": {"topic": "t", "partition": 0, "start": 5, "stop": 1}, "row": {}}',
        b'{"unit": {"topic": "t", "partition": 0, "start": 0, "stop": 1}}',
        b'{"unit": {"topic": "t", "partition": 0, "start": 0, "stop": 1}, "error":'
        b' {"kind": "dataclass", "text": "", "fields": {}, "notes": []}}',
        b'{"unit": {"topic": "t", "partition": 0, "start": 0, "stop": 1}, "error":'
        b' {"kind": "error_row", "text": "", "fields": {}, "notes": []}}',
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        result_note(text)
    with pytest.raises(ValueError):  # noqa: PT011
        job_note(text)
