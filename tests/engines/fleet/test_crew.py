"""The judges of the fleet under fire see what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from ottla.model import OffsetRange

from .crew import Handled, missing, out_of_order, read_lines, repeated


def handled(start: int, stop: int, *, attempt: int = 1, fence: int = 1, ending: str = "done") -> Handled:
    """A unit without gaps."""
    total = sum(range(start, stop))
    return Handled(OffsetRange("t", 0, start, stop), attempt, fence, 7, start, stop - 1, stop - start, total, ending)


def test_a_hole_is_seen_wherever_it_is() -> None:
    some = [handled(20, 30), handled(5, 10), handled(8, 15)]
    assert missing(some, {("t", 0): 35, ("t", 1): 2}) == [
        OffsetRange("t", 0, 0, 5),
        OffsetRange("t", 0, 15, 20),
        OffsetRange("t", 0, 30, 35),
        OffsetRange("t", 1, 0, 2),
    ]
    assert missing([handled(0, 10), handled(10, 20)], {("t", 0): 20}) == []


def test_a_unit_of_which_a_record_is_missing_or_twice_there_or_another_is_not_whole() -> None:
    unit = handled(10, 20)
    assert unit.is_whole
    assert not unit._replace(records=9).is_whole
    assert not unit._replace(records=11).is_whole
    assert not unit._replace(total=unit.total + 1).is_whole
    assert not unit._replace(first=11).is_whole


def test_attempts_at_one_unit_come_in_the_order_of_their_leases() -> None:
    late, early, other = handled(0, 5, attempt=1, fence=3), handled(0, 5, attempt=2, fence=9), handled(5, 9, fence=4)
    assert repeated([early, other, late]) == [[late, early]]


def test_an_accepted_unit_before_one_that_was_accepted_already_is_out_of_order() -> None:
    first, second, third = handled(0, 10), handled(10, 20), handled(20, 30)
    assert out_of_order([first, second, third]) == []
    assert out_of_order([first, third, second]) == [second]
    assert out_of_order([first, third._replace(ending="lost"), second]) == []


def test_lines_of_several_workers_are_put_together(tmp_path: Path) -> None:
    unit, path = handled(0, 5, ending=""), tmp_path / "lines"
    ranged = {"range": ["t", 0, 0, 5]}
    line = {name: value for name, value in unit._asdict().items() if name != "ending"} | ranged
    end = {**ranged, "fence": 1, "pid": 7, "ending": "done"}
    lines = [line, end, {**line, "pid": 8}, {**end, "pid": 9}, line]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_lines(path) == [unit._replace(ending="done"), unit._replace(pid=8), unit]
