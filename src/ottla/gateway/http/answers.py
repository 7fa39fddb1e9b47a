"""What became of the records of a request, and how the native API says so. Pure.

Deliveries that are done come in; partitions, offsets and errors by record go out, then the body of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ottla.gateway.http.problems import Problem, problem_of
from ottla.produce.delivery import Decided, Sent


class Landed(msgspec.Struct, frozen=True):
    """Records in a row of one request that have offsets in a row of one partition. `offset` is -1 if it is unknown."""

    rows: tuple[int, ...] | range
    partition: int
    offset: int


class Missed(msgspec.Struct, frozen=True):
    """Records of one request that were not acknowledged."""

    rows: tuple[int, ...] | range
    problem: Problem


class Outcome(msgspec.Struct, frozen=True):
    """What became of all records of one request."""

    count: int
    landed: tuple[Landed, ...]
    missed: tuple[Missed, ...] = ()

    @property
    def failed(self) -> int:
        """The number of records that were not acknowledged."""
        return sum(len(each.rows) for each in self.missed)

    @property
    def worst(self) -> Problem | None:
        """The problem that decides the status if all records failed: an unknown outcome before all others."""
        problems = [each.problem for each in self.missed]
        return max(problems, key=lambda problem: (problem.status == 504, problem.status), default=None)


def of_one(sent: Sent) -> Outcome:
    """Return the outcome of a request with one record."""
    return Outcome(1, (Landed(range(1), sent.partition, sent.offset),))


def of_one_failed(error: Exception) -> Outcome:
    """Return the outcome of a request whose only record failed."""
    return Outcome(1, (), (Missed(range(1), problem_of(error)),))


def of_many(count: int, decided: Iterable[Decided]) -> Outcome:
    """Return the outcome of a request with several records."""
    landed: list[Landed] = []
    missed: list[Missed] = []
    for each in decided:
        numbers = each.rows.tolist()
        is_run = bool(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers)
        rows = range(numbers[0], numbers[-1] + 1) if is_run else tuple(numbers)
        if each.error is not None:
            missed.append(Missed(rows, problem_of(each.error)))
        else:
            landed.append(Landed(rows, each.at.partition, each.offset))
    return Outcome(count, tuple(landed), tuple(missed))


def by_row(outcome: Outcome) -> list[tuple[int, int] | Problem]:
    """Return partition and offset, or the problem, of each record."""
    rows: list[tuple[int, int] | Problem] = [_MISSING] * outcome.count
    for landed in outcome.landed:
        for at, row in enumerate(landed.rows):
            rows[row] = (landed.partition, landed.offset + at if landed.offset >= 0 else -1)
    for missed in outcome.missed:
        for row in missed.rows:
            rows[row] = missed.problem
    return rows


_MISSING = Problem(504, "outcome unknown")


def native(outcome: Outcome, *, detail: bool = False) -> tuple[int, bytes]:
    """Return status and body: 200, 207 if some records failed, else the status of what failed."""
    if outcome.count == 1 and outcome.landed and not detail:  # by far the most frequent one
        landed = outcome.landed[0]
        return 200, _ONE % (landed.partition, landed.offset)
    answer: dict[str, object] = {
        "ranges": [
            {"partition": each.partition, "base_offset": each.offset, "count": len(each.rows)}
            for each in outcome.landed
        ],
        "failed": [{"index": row, **each.problem.fields("code")} for each in outcome.missed for row in each.rows],
    }
    if detail:
        answer["records"] = [
            {"partition": each[0], "offset": each[1]} if isinstance(each, tuple) else None for each in by_row(outcome)
        ]
    status = 200
    worst = outcome.worst
    if worst is not None:
        status = 207 if outcome.failed < outcome.count else worst.status
        answer |= worst.fields()
    return status, msgspec.json.encode(answer)


_ONE = b'{"ranges":[{"partition":%d,"base_offset":%d,"count":1}],"failed":[]}'
