"""`replay`: an archive back into a topic with one call, for programs. `ottla replay` does the same.

An archive, a topic and brokers come in. The call returns a `ReplayReport` once every selected record is in the topic,
exactly once. `run_replay` and `prove` are the two halves for callers that show progress or stop early: they run a plan
on an engine, and compare what was sent with the archive's receipts. Nothing is printed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ottla.engines.contract import Engine
from ottla.errors import Advice, ConfigError, InputError, LakeDamaged
from ottla.jobs.brokers import Brokers
from ottla.jobs.engine_choice import choose_engine, engine_name
from ottla.jobs.replay_partition import CLIENT_ID, Placement, Replayed, Target
from ottla.jobs.replay_plan import Plan, plan
from ottla.jobs.replay_source import Selection, open_source
from ottla.jobs.replay_throttle import Rate, ReplayControl
from ottla.jobs.replay_where import AllOf, Compared, Condition, parse
from ottla.model import Fingerprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice

ReplayBound = datetime | int | str
"""Where a replay starts or stops: a time, a source offset, or the text for no limit, "earliest" or "latest"."""
WORKERS = 4
"""Source partitions replayed at the same time by the local engine, unless set otherwise."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What one run of a replay did."""

    plan: Plan
    partitions: tuple[Replayed, ...]
    """The source partitions that had records left, in order, with their receipts."""
    seconds: float

    @property
    def name(self) -> str:
        """The name of the replay. Pass it as `name` to resume a replay that was started with `again`."""
        return self.plan.name

    @property
    def cautions(self) -> tuple[str, ...]:
        """Properties of the target to know about, such as a retention that soon deletes what was replayed."""
        return self.plan.cautions

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the records that this run sent."""
        return sum((partition.fingerprint for partition in self.partitions), Fingerprint())

    @property
    def records(self) -> int:
        """How many records this run sent."""
        return self.fingerprint.count

    @property
    def size_bytes(self) -> int:
        """The bytes of keys, values and headers that this run sent."""
        return sum(receipt.size_bytes for partition in self.partitions for receipt in partition.receipts)

    @property
    def is_finished(self) -> bool:
        """Whether everything that is selected is in the topic."""
        reached = {partition.range.topic_partition: partition.position for partition in self.partitions}
        return self.plan.share_done(reached) >= 1.0

    @property
    def had_nothing_left(self) -> bool:
        """Whether earlier runs had finished the replay already."""
        # The plan may be older than what another run has committed since, so the positions of this run decide.
        is_done = all(partition.start >= partition.range.stop for partition in self.partitions)
        return self.is_finished and is_done

    @property
    def is_proven(self) -> bool | None:
        """Whether what all runs sent together equals the archive's receipts; None if that cannot be compared.

        It can be compared if everything was replayed, if the archive has receipts, and if the notes of earlier runs
        are known.
        """
        expected = self.plan.expected()
        known = [partition for partition in self.partitions if partition.is_finished and partition.whole is not None]
        if expected is None or len(known) < len(self.plan.partitions):
            return None
        return all(partition.whole == expected[partition.range.topic_partition] for partition in known)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "path": self.plan.source.path,
            "target": self.plan.target.topic,
            "records": self.records,
            "bytes": self.size_bytes,
            "fingerprint": str(self.fingerprint),
            "seconds": round(self.seconds, 3),
            "finished": self.is_finished,
            "verified": self.is_proven,
            "lineages": [partition.to_json() for partition in self.partitions],
        }


def replay(
    path: str | os.PathLike[str],
    to: str,
    *,
    brokers: Brokers | str,
    topics: str | Iterable[str] = (),
    start: ReplayBound | None = None,
    stop: ReplayBound | None = None,
    where: str | Condition | None = None,
    keep_partitions: bool = False,
    rate: Rate | float | None = None,
    name: str | None = None,
    again: bool = False,
    compression: str = "zstd",
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    verify: bool = True,
) -> ReplayReport:
    """Write the records of an archive to a topic, with their keys, headers and timestamps, exactly once.

    `path` is an archive, or a folder of Parquet files with the columns of Spark's Kafka connector; the topic must
    exist. `topics` names source topics (default: all). `start` and `stop` are timestamps, or source offsets if they are
    numbers; `stop` is exclusive; `"earliest"` and `"latest"` are the ends of the archive. `where` is a condition such
    as `"key = 'user-1' and header.site = 'oslo'"`. Records go to partitions by key, or keep their partition numbers
    with `keep_partitions`. A number as `rate` is records per second. The same call resumes where an earlier one
    stopped; `name` tells replays apart, and `again` writes everything once more. `compression` is the producer's. The
    engine is `"local"` (threads, the default), `"spark"` with a session, or a function that runs a job over ranges.
    `verify` compares what was sent with the archive's receipts where everything is replayed.

    Raises `ConfigError` or `InputError` for wrong arguments, `InputError` if nothing is selected or the target has too
    few partitions, `LakeError` if the archive cannot be read, `LakeDamaged` if what was sent is not what its receipts
    say, `Fenced` if another run of the same replay takes over, and the errors of `Producer` if records cannot be
    written.
    """
    if again and name is not None:
        raise ConfigError("again and name are mutually exclusive: a new name writes everything once more, too")
    limit = rate if rate is None or isinstance(rate, Rate) else Rate(rate)
    selection = select((topics,) if isinstance(topics, str) else topics, start=start, stop=stop, where=where)
    kind = engine_name(engine, spark)
    runner = choose_engine(engine, spark=spark, workers=WORKERS if kind == "local" and workers is None else workers)
    access = brokers if isinstance(brokers, Brokers) else Brokers(bootstrap=brokers)
    planned = plan(
        open_source(os.fspath(path)),
        selection,
        Target(
            access=replace(access, client_id=CLIENT_ID),
            topic=to,
            placement=Placement.KEPT if keep_partitions else Placement.BY_KEY,
            compression=compression,
        ),
        name=name,
        since=time.time() if again else None,
    )
    if limit is not None and kind != "local":
        limit = limit.divided(len(planned.ranges))  # tasks in other processes cannot share one limit
    report = run_replay(planned, runner, control=ReplayControl(limit))
    if verify:
        prove(report)
    return report


def select(
    topics: Iterable[str] = (),
    *,
    start: ReplayBound | None = None,
    stop: ReplayBound | None = None,
    where: str | Condition | None = None,
) -> Selection:
    """Return a selection by topics, times or source offsets, and a condition.

    Raises `InputError` if the condition is not understood, `start` or `stop` is neither an offset nor a time with a
    zone, or `stop` is not after `start`.
    """
    start, stop = _limit("start", start, none="earliest"), _limit("stop", stop, none="latest")
    is_empty = isinstance(start, datetime) and isinstance(stop, datetime) and stop <= start
    if is_empty or (isinstance(start, int) and isinstance(stop, int) and stop <= start):
        raise InputError(f"stop={stop} is not after start={start}: nothing is between them")
    conditions: list[Condition] = []
    if where is not None:
        conditions.append(parse(where) if isinstance(where, str) else where)
    if isinstance(start, int):
        conditions.append(Compared("offset", ">=", start))
    if isinstance(stop, int):
        conditions.append(Compared("offset", "<", stop))
    return Selection(
        topics=tuple(dict.fromkeys(topics)),
        start=start if isinstance(start, datetime) else None,
        stop=stop if isinstance(stop, datetime) else None,
        where=AllOf(tuple(conditions)) if len(conditions) > 1 else next(iter(conditions), None),
    )


def _limit(name: str, bound: object, *, none: str) -> datetime | int | None:
    """Return a limit of the selection, None if there is none. Anything unknown would select everything."""
    match bound:
        case None:
            return None
        case str() if bound == none:
            return None
        case datetime():
            if bound.tzinfo is None:
                raise InputError(
                    f"{name}={bound.isoformat()} has no time zone: use an aware datetime, for example in UTC"
                )
            return bound
        case int() if not isinstance(bound, bool):
            if bound < 0:
                raise InputError(f"{name} is offset {bound}; offsets begin at 0")
            return bound
    raise InputError(f"{name} is {bound!r}; accepted are {none!r}, a source offset, and a datetime with a time zone")


def run_replay(
    planned: Plan,
    engine: Engine,
    *,
    control: ReplayControl | None = None,
    is_stopped: Callable[[], bool] | None = None,
) -> ReplayReport:
    """Run a planned replay on an engine. It ends early, after the current chunks, once `is_stopped` returns True.

    `control` has the rate limit, and counts progress while the engine runs in this process. Raises what the job raises:
    `Fenced` if another run takes over, `LakeError` if the archive cannot be read, and the errors of `Producer`.
    """
    began = time.monotonic()
    job = planned.job(control or ReplayControl())
    if is_stopped is not None:
        job = job.until(is_stopped)
    done: Sequence[Replayed] = list(engine(job, planned.ranges)) if planned.ranges else []
    partitions = tuple(sorted(done, key=lambda partition: partition.range))
    return ReplayReport(planned, partitions, time.monotonic() - began)


def prove(report: ReplayReport) -> None:
    """Compare what was sent, by all runs together, with the archive's receipts, partition by partition.

    Raises `LakeDamaged` for the first source partition that is finished and differs. A partition that cannot be
    compared passes; see `ReplayReport.is_proven`.
    """
    expected = report.plan.expected() or {}
    for partition in report.partitions:
        tp = partition.range.topic_partition
        sent, receipts = partition.whole, expected.get(tp)
        if partition.is_finished and sent is not None and receipts is not None and sent != receipts:
            raise LakeDamaged(
                report.plan.source.path,
                f"{tp}: {sent.count:,} records were sent, the archive has receipts for {receipts.count:,}, or their"
                f" content differs ({sent} and {receipts}): {Advice.VERIFY}",
            )
