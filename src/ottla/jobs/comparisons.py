"""`compare`: tiers side by side, from the tallies of an audit topic or from the data itself, with one call.

The audit topic's cluster comes in, and with `data` the clusters of the tiers; rows with verdicts go out. Threads of
this process read, or tasks of a Spark session.
"""

from __future__ import annotations

import time as clock
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ottla.audit.compare import DEFAULT_DELAY, Row, Rules, Verdict, compare_topic, is_silent
from ottla.audit.counts import count_tier, last_sign
from ottla.audit.notes import Notes
from ottla.errors import ConfigError, InputError
from ottla.jobs.arguments import check_moment, check_seconds, check_topic_names
from ottla.jobs.audit_notes import read_notes
from ottla.jobs.brokers import Brokers
from ottla.jobs.engine_choice import choose_engine, parallelism
from ottla.jobs.tallies import CELL_RECORDS, TallyRequest, count_log
from ottla.tally.values import AUDIT_TOPIC, DEFAULT_BUCKET_SECONDS, RECORD_TIME, bucket_of, check_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on all buckets of all topics."""

    tiers: tuple[str, ...]
    rows: tuple[Row, ...]
    compared_at: float
    unreadable: int = 0
    """Records of the audit topic that are no tallies."""
    problems: tuple[str, ...] = ()
    """Why topics could not be compared at all."""
    silent: tuple[str, ...] = ()
    """Tiers that have not counted for a while, with the time: nothing is known of what came since."""

    @property
    def verdicts(self) -> Counter[Verdict]:
        """How many buckets have each verdict."""
        return Counter(row.verdict for row in self.rows)

    @property
    def has_faults(self) -> bool:
        """Whether anything is missing, duplicated or altered."""
        return any(row.verdict.is_fault for row in self.rows)


def compare(
    *,
    audit: Brokers | str | None = None,
    audit_topic: str = AUDIT_TOPIC,
    tiers: str | Sequence[str] | None = None,
    topics: Iterable[str] | None = None,
    data: Mapping[str, Brokers | str] | None = None,
    start: datetime | None = None,
    stop: datetime | None = None,
    delay: float = DEFAULT_DELAY,
    by_partition: bool = True,
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS,
    time: str = RECORD_TIME,
    names: Mapping[str, Mapping[str, str]] | None = None,
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    now: float | None = None,
) -> Comparison:
    """Compare tiers by topic and bucket, each with the one before it.

    `audit` is the cluster that has the audit topic. `tiers` is the order in which records pass them; by default those
    of producers come first, those of consumers last, others by name. `data` maps tiers to clusters that are read and
    counted now, in place of tallies; `bucket_seconds`, `time` and `names` (for each tier: its topics, by the name in
    the comparison) are for these. `start` and `stop` limit the buckets. A bucket closes `delay` seconds after its end:
    until then a difference is `late`. `by_partition` is for tiers that keep partitions.

    Raises `ConfigError` for invalid arguments, `InputError` if there are no tallies, or only in buckets of different
    length, `BrokerError` for an unknown topic, and the errors of `Reader` if brokers cannot be reached.
    """
    delay = check_seconds("delay", delay, most=30 * 86_400)
    start, stop = check_moment("start", start), check_moment("stop", stop)
    if audit is None and not data:
        raise ConfigError("nothing to compare: pass audit=..., the cluster of the audit topic, or data=...")
    moment_now = clock.time() if now is None else now
    run = choose_engine(engine, spark=spark, workers=workers)
    listed = None if topics is None else check_topic_names("topics", topics)
    order = (
        None if tiers is None else [check_name("tier", tier) for tier in ([tiers] if isinstance(tiers, str) else tiers)]
    )
    twice = [tier for tier, count in Counter(order or ()).items() if count > 1]
    if twice:
        raise ConfigError(f"tier {twice[0]} is named twice: each tier is compared with the one before it")
    notes = Notes()
    if audit is not None:
        source = audit if isinstance(audit, Brokers) else Brokers(bootstrap=audit, client_id="ottla-audit")
        tasks = parallelism(spark, workers)
        notes = read_notes(source, audit_topic, topics=listed, tiers=order, engine=run, tasks=tasks)
    for tier, brokers in (data or {}).items():
        if listed is None:
            raise ConfigError("data=... needs topics=...: which topics are read is not for the audit topic to decide")
        _replace_tier(notes, tier)
        where = brokers if isinstance(brokers, Brokers) else Brokers(bootstrap=brokers, client_id="ottla-audit")
        renamed = dict((names or {}).get(tier, {}))
        request = TallyRequest(
            tier=tier,
            bucket_seconds=bucket_seconds,
            time=time,
            start=start,
            names={own: name for name, own in renamed.items()},
        )
        own_topics = [renamed.get(topic, topic) for topic in listed]
        for counted in count_log(own_topics, where, request, run=run, cell=_cell(spark)):
            notes.add(counted)
    found = order or notes.tiers()
    if not notes.tallies:
        raise InputError(f"there are no tallies of {_named(listed)} to compare")
    rows: list[Row] = []
    rules = Rules(now=moment_now, delay=delay, by_partition=by_partition)
    problems: list[str] = []
    for topic, by_tier in notes.by_topic().items():
        try:
            counts = [count_tier(tier, topic, by_tier.get(tier, ()), now=moment_now) for tier in found]
            compared = compare_topic(topic, counts, rules)
        except InputError as error:
            if listed is not None and len(listed) == 1:
                raise
            problems.append(str(error))  # one topic must not hide the others
            continue
        rows += (row for row in compared if _is_inside(row, start, stop))
    missing = [topic for topic in listed or () if topic not in notes.by_topic()]
    if missing:
        raise InputError(f"there are no tallies of {_named(missing)} to compare")
    silent = _silent(found, notes, rules, stop)
    return Comparison(tuple(found), tuple(rows), moment_now, notes.unreadable, tuple(problems), silent)


def _silent(tiers: Sequence[str], notes: Notes, rules: Rules, stop: datetime | None) -> tuple[str, ...]:
    """Return the tiers that do not count any more. If none of them does, there is no bucket that could say so."""
    texts = []
    for tier in tiers:
        tallies = list(notes.selected(tiers=[tier]))
        if not tallies:
            continue  # without any, all of its buckets are unknown
        last, seconds = last_sign(tallies), max(tally.bucket_seconds for tally in tallies)
        end = None if stop is None else stop.timestamp()
        if is_silent(last, seconds, now=rules.now, delay=rules.delay, stop=end):
            moment = datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            texts.append(f"tier {tier} was last counted at {moment}: nothing is known of what came since")
    return tuple(texts)


def _cell(spark: SparkSession | None) -> int:
    """Cut smaller for Spark: tasks in threads of one process share its memory, those of Spark should be many."""
    return CELL_RECORDS if spark is None else CELL_RECORDS // 2


def _replace_tier(notes: Notes, tier: str) -> None:
    check_name("tier", tier)
    for key in [key for key, tally in notes.tallies.items() if tally.tier == tier]:
        del notes.tallies[key]


def _is_inside(row: Row, start: datetime | None, stop: datetime | None) -> bool:
    # A bucket that begins before `start` would be cut in half.
    first = None if start is None else -bucket_of(-start.timestamp(), row.seconds)
    return (first is None or row.start >= first) and (stop is None or row.start < stop.timestamp())


def _named(topics: Sequence[str] | None) -> str:
    return "any topic" if topics is None else f"topic {', '.join(topics)}"
