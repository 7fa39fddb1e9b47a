"""Hands the records of a request to the producer and waits as its acknowledgement demands.

Rows and an acknowledgement come in, an `Outcome` goes out. `all` waits for the brokers, `spool` for the disk, `none`
for nothing. It parses no body and knows no route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import pyarrow as pa

from ottla.errors import OttlaError
from ottla.gateway.http import answers
from ottla.gateway.http.answers import Outcome
from ottla.gateway.http.bodies import Rows, check_headers
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.directory import Directory
from ottla.gateway.http.gathering import Gathering, Waiting
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, problem_of, unknown_outcome
from ottla.gateway.http.waking import Waker
from ottla.gateway.intake import Incoming, Intake


class Ack(Enum):
    """What a request waits for."""

    ALL = "all"
    SPOOL = "spool"
    NONE = "none"


def parse_ack(text: str, *, has_spool: bool) -> Ack:
    """Return the acknowledgement of that name. Raises `Problem`."""
    try:
        ack = Ack(text or "all")
    except ValueError as error:
        raise Problem(400, f"ack is {text!r}; accepted are {', '.join(each.value for each in Ack)}") from error
    if ack is Ack.SPOOL and not has_spool:
        raise Problem(400, "ack=spool needs a gateway with a spool; use ack=all or ack=none")
    return ack


class Keyed(Protocol):
    """Writes a request and its idempotency key together."""

    async def write(self, name: str, digest: bytes, topic: str, rows: Sequence[Incoming] | pa.RecordBatch) -> Outcome:
        """Write the rows once, however often the key comes. Raises `Problem`."""


class Producing:
    """What handlers use to write. One for each event loop."""

    def __init__(
        self, intake: Intake, directory: Directory, *, limits: Limits, counters: Counters, keyed: Keyed | None = None
    ) -> None:
        self._intake = intake
        self.directory = directory
        self.limits = limits
        self.counters = counters
        self.keyed = keyed
        self._waker: Waker | None = None
        self._gathering: Gathering | None = None

    @property
    def has_spool(self) -> bool:
        """Whether there is a place for records that brokers have not acknowledged."""
        return self._intake.has_spool

    async def produce(self, topic: str, rows: Rows, ack: Ack = Ack.ALL) -> Outcome:
        """Hand over rows and return what became of them; an empty outcome unless `ack` is `all`. Raises `Problem`."""
        if topic not in self.directory.topics:
            await self.directory.require(topic)
        if not isinstance(rows, pa.RecordBatch):
            for index, row in enumerate(rows):
                if row.headers:
                    check_headers(row.headers, f"record {index}", self.limits)
        started = time.perf_counter()
        if ack is Ack.NONE:
            now = time.time()
            self._intake.forget(topic, rows, (now, now), lost=self.counters.lost)
            self.counters.took(topic, len(rows))
            return Outcome(len(rows), ())
        outcome = await self._written(topic, rows) if ack is Ack.ALL else await self._spooled(topic, rows)
        for missed in outcome.missed:
            self.counters.refused(missed.problem)
        self.counters.took(topic, len(rows), failed=outcome.failed, seconds=time.perf_counter() - started)
        return outcome

    async def produce_once(self, topic: str, rows: Rows, name: str, digest: bytes) -> Outcome:
        """Write rows under an idempotency key. Raises `Problem`."""
        if self.keyed is None:
            raise Problem(501, "this gateway keeps no idempotency keys")
        await self.directory.require(topic)
        outcome = await self.keyed.write(name, digest, topic, rows)
        self.counters.took(topic, len(rows), failed=outcome.failed)
        return outcome

    async def _written(self, topic: str, rows: Rows) -> Outcome:
        if len(rows) == 1 and not isinstance(rows, pa.RecordBatch):
            return await self._gathered(topic, rows[0])
        try:
            delivery = self._intake.send_table(topic, rows) if _is_table(rows) else self._intake.send(topic, rows)
        except OttlaError as error:
            raise self._refusal(error, len(rows)) from error
        if not await self.waker.done(delivery, self.limits.ack_seconds):
            raise self._unknown()
        return answers.of_many(len(rows), delivery.outcomes(0))

    def _unknown(self) -> Problem:
        where = " and are in the spool, which goes on trying" if self.has_spool else ""
        return unknown_outcome(f"the records were not acknowledged within {self.limits.ack_seconds:g} s{where}")

    async def _spooled(self, topic: str, rows: Rows) -> Outcome:
        try:
            delivery = self._intake.send_table(topic, rows) if _is_table(rows) else self._intake.send(topic, rows)
        except OttlaError as error:
            raise self._refusal(error, len(rows)) from error
        try:
            await asyncio.wrap_future(self._intake.persisted(delivery))
        except (OttlaError, TimeoutError) as error:
            raise unknown_outcome(f"the records are not on disk: {str(error).partition(chr(10))[0]}") from error
        decided = answers.of_many(len(rows), delivery.decided())  # written meanwhile, or refused
        if not delivery.done:
            now = time.time()
            self._intake.watch(topic, delivery, (now, now), lost=self.counters.lost)
        return decided

    def _refusal(self, error: OttlaError, count: int) -> Problem:
        if error.accepted:
            reason = str(error).partition("\n")[0]
            return unknown_outcome(f"{error.accepted} of {count} records were taken over, then: {reason}")
        return problem_of(error)

    def _gathered(self, topic: str, record: Incoming) -> Waiting:
        """Write a single record together with those of other requests."""
        if self._gathering is None:
            self._gathering = Gathering(
                self._intake, self.waker, unknown=self._unknown, seconds=self.limits.ack_seconds
            )
        return self._gathering.write(topic, record)

    @property
    def waker(self) -> Waker:
        """What wakes the tasks of this loop."""
        if self._waker is None:
            self._waker = Waker(asyncio.get_running_loop())
        return self._waker


def _is_table(rows: Rows) -> bool:
    return isinstance(rows, pa.RecordBatch)
