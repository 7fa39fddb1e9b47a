"""Committed offsets of groups on the other side of a link: exact, never back, and a consumer that fails over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka
import pytest
from tests.admin.members import member
from tests.mirror.copies import link_of, new_topic, running
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin, Committed
from ottla.admin.group_admin import GroupAdmin
from ottla.cli.mirror.view import moves_text
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ErrorCode
from ottla.jobs.mirror_groups import GroupSync, Last, Move, Outcome, chosen, decide, translate
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_maps import PartitionMap, settled_maps
from ottla.jobs.mirror_runner import run_links
from ottla.jobs.mirrors import Mirroring
from ottla.mirror.terms import Mark, Run, Term
from ottla.model import TopicPartition

SOURCE, TARGET = TopicPartition("clicks", 0), TopicPartition("copy", 0)
MAP = PartitionMap(
    SOURCE,
    TARGET,
    (Term(0, 7, 3, None, None, Mark(0, 100, 1), runs=(Run(0, 100, 1, 0),), mark=Mark(50, 150, 51)),),
)
_SECONDS = 60.0


@pytest.mark.parametrize(
    ("goal", "before", "last", "outcome"),
    [
        (None, None, None, Outcome.NOT_MIRRORED),
        (11, None, None, Outcome.COMMITTED),
        (11, 5, None, Outcome.COMMITTED),
        (11, 11, None, Outcome.UP_TO_DATE),
        (11, 20, None, Outcome.AHEAD),
        (11, 20, Last(119, 20), Outcome.COMMITTED),
        (11, 21, Last(119, 20), Outcome.AHEAD),
        (11, 20, Last(110, 20), Outcome.AHEAD),
    ],
)
def test_an_offset_goes_back_only_if_the_original_did(
    goal: int | None, before: int | None, last: Last | None, outcome: Outcome
) -> None:
    assert decide(110, goal, before, last) is outcome


@pytest.mark.parametrize(
    ("offset", "goal", "outcome"),
    [
        (120, 21, Outcome.COMMITTED),
        (150, 51, Outcome.COMMITTED),
        (151, None, Outcome.NOT_MIRRORED),
        (99, None, Outcome.BEFORE_MIRROR),
    ],
)
def test_committed_offsets_are_translated_record_by_record(offset: int, goal: int | None, outcome: Outcome) -> None:
    (move,) = translate("g", {SOURCE: Committed(offset), TopicPartition("x", 0): Committed(1)}, {}, [MAP], {})
    assert (move.source_offset, move.target_offset, move.before, move.outcome) == (offset, goal, None, outcome)


def test_the_way_back() -> None:
    (move,) = translate("g", {TARGET: Committed(21)}, {SOURCE: Committed(100)}, [MAP], {}, reverse=True)
    assert (move.source_offset, move.target_offset, move.before, move.outcome) == (120, 21, 100, Outcome.COMMITTED)
    (move,) = translate("g", {TARGET: Committed(0)}, {}, [MAP], {}, reverse=True)
    assert move.outcome is Outcome.BEFORE_MIRROR


def test_groups_are_chosen_by_name_and_pattern() -> None:
    assert chosen(["b2", "billing", "b1", "other"], ["b?", "other"]) == ["b1", "b2", "other"]
    assert chosen(["team[1]", "team1"], ["team[1]"]) == ["team1", "team[1]"]


def _fill(bootstrap: str, topic: str, numbers: range) -> None:
    """In transactions, every third of them aborted: source and target offsets differ, and the last is a marker."""
    with Producer(bootstrap, transactional_id=f"{topic}-fill") as producer:
        for number in numbers:
            try:
                with producer.transaction():
                    for partition in range(2):
                        producer.send(topic, b"%d-%d" % (partition, number), partition=partition)
                    if number % 3 == 0:
                        producer.send(topic, b"aborted", partition=0)
                        raise ValueError("abort this one")
            except ValueError:
                pass


def _sent(numbers: range) -> set[bytes]:
    return {b"%d-%d" % (partition, number) for number in numbers if number % 3 for partition in range(2)}


def _consume(bootstrap: str, group: str, topic: str, count: int) -> list[bytes]:
    """Read this many records as a member of a group, commit exactly what was read, and leave."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    values: list[bytes] = []
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        while len(values) < count:
            message = consumer.poll(_SECONDS)
            assert message is not None, f"{len(values)} of {count} records"
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
        consumer.commit(asynchronous=False)
    return values


def _begin(bootstrap: str, group: str, topic: str) -> None:
    with Admin(bootstrap) as admin:
        admin.groups.set_offsets(group, {TopicPartition(topic, number): 0 for number in range(2)})


@contextmanager
def _syncing(link: Link, group: str, *, reverse: bool = False) -> Iterator[tuple[GroupSync, list[PartitionMap]]]:
    with Mirroring(link) as mirroring:
        sync = GroupSync(mirroring.source, mirroring.target, mirroring.journal, [group], reverse=reverse)
        yield sync, settled_maps(mirroring.journal, mirroring.target)


@pytest.mark.broker
def test_a_consumer_that_fails_over_and_comes_back_has_every_record_once(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "failover", partitions=2)
    group, target = f"group-{topic}", f"copy.{topic}"
    link = link_of(kafka.bootstrap, topic, groups=group)
    numbers = range(60)
    _fill(kafka.bootstrap, topic, numbers)
    _begin(kafka.bootstrap, group, topic)
    half = _consume(kafka.bootstrap, group, topic, 40)
    (run,) = run_links([link])
    assert run.error is None
    assert run.report is not None
    assert not run.report.failed
    quarter = _consume(kafka.bootstrap, group, target, 20)
    with _syncing(link, group, reverse=True) as (sync, maps):
        outcomes = {move.outcome for move in sync.run(maps)}
        assert Outcome.COMMITTED in outcomes <= {Outcome.COMMITTED, Outcome.UP_TO_DATE}
    rest = _consume(kafka.bootstrap, group, topic, 20)
    assert len(half + quarter + rest) == len(_sent(numbers)) == 80
    assert set(half + quarter + rest) == _sent(numbers)


@pytest.mark.broker
def test_a_group_at_the_end_of_a_source_with_markers_is_at_the_end_of_the_target(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "group-end", partitions=2)
    group, target = f"group-{topic}", f"copy.{topic}"
    link = link_of(kafka.bootstrap, topic, groups="group-mirror-group-end*")
    _fill(kafka.bootstrap, topic, range(10))
    ends = {TopicPartition(topic, number): 0 for number in range(2)}
    with Admin(kafka.bootstrap) as admin:
        ends = {tp: at.offset for tp, at in admin.list_offsets(list(ends)).items()}
        admin.groups.set_offsets(group, ends)
    run_links([link])
    _fill(kafka.bootstrap, topic, range(10, 20))
    run_links([link])
    assert set(_consume(kafka.bootstrap, group, target, len(_sent(range(10, 20))))) == _sent(range(10, 20))


@pytest.mark.broker
def test_a_group_in_use_at_the_target_and_one_that_is_ahead_are_left_alone(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "group-use", partitions=2)
    group, target = f"group-{topic}", f"copy.{topic}"
    link = link_of(kafka.bootstrap, topic)
    _fill(kafka.bootstrap, topic, range(10))
    run_links([link])
    there = TopicPartition(target, 0)
    with Admin(kafka.bootstrap) as admin, _syncing(link, group) as (sync, maps):
        admin.groups.set_offsets(group, {TopicPartition(topic, 0): 6})
        with member(kafka.bootstrap, group, target, protocol="classic"):
            assert [move.outcome for move in sync.run(maps)] == [Outcome.IN_USE]
            assert there not in admin.groups.committed(group)
        assert [move.outcome for move in sync.run(maps, dry_run=True)] == [Outcome.WOULD_COMMIT]
        assert there not in admin.groups.committed(group)
        (first,) = sync.run(maps)
        assert first.outcome is Outcome.COMMITTED
        admin.groups.set_offsets(group, {TopicPartition(topic, 0): 2})
        (back,) = sync.run(maps)  # the source went back, and nothing has moved the copy since
        assert back.outcome is Outcome.COMMITTED
        assert (back.target_offset or 0) < (first.target_offset or 0)
        admin.groups.set_offsets(group, {there: 5})  # a consumer went on at the target
        (move,) = sync.run(maps)
        assert move.outcome is Outcome.AHEAD
        assert admin.groups.committed(group)[there].offset == 5
        admin.groups.set_offsets(group, {TopicPartition(topic, 0): 10_000})
        assert [move.outcome for move in sync.run(maps)] == [Outcome.NOT_MIRRORED]


@pytest.mark.broker
def test_a_step_back_at_the_source_counts_though_a_consumer_brought_the_target_there(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "group-back", partitions=2)
    group = f"group-{topic}"
    link = link_of(kafka.bootstrap, topic)
    _fill(kafka.bootstrap, topic, range(10))
    run_links([link])
    here, there = TopicPartition(topic, 0), TopicPartition(f"copy.{topic}", 0)
    with Admin(kafka.bootstrap) as admin, _syncing(link, group) as (sync, maps):
        admin.groups.set_offsets(group, {here: 6})
        sync.run(maps)
        (mapped,) = [each for each in maps if each.source == here]
        further, back = mapped.to_target(8), mapped.to_target(2)
        assert further is not None
        admin.groups.set_offsets(group, {there: further})  # a failover: the group goes on at the target
        admin.groups.set_offsets(group, {here: 8})  # and comes back
        assert [move.outcome for move in sync.run(maps)] == [Outcome.UP_TO_DATE]
        admin.groups.set_offsets(group, {here: 2})  # somebody resets it
        assert [move.outcome for move in sync.run(maps)] == [Outcome.COMMITTED]
        assert admin.groups.committed(group)[there].offset == back


@pytest.mark.broker
def test_a_target_topic_that_was_deleted_holds_up_no_other(kafka: LocalCluster) -> None:
    gone, kept = (new_topic(kafka.bootstrap, name, partitions=2) for name in ("group-gone", "group-kept"))
    group = f"group-{gone}"
    link = link_of(kafka.bootstrap, gone, kept)
    for topic in (gone, kept):
        _fill(kafka.bootstrap, topic, range(10))
    run_links([link])
    with Admin(kafka.bootstrap) as admin:
        admin.groups.set_offsets(group, {TopicPartition(gone, 0): 6, TopicPartition(kept, 0): 6})
        admin.delete_topics(f"copy.{gone}")
        eventually(lambda: f"copy.{gone}" not in admin.topic_names(), "it is gone")
        with _syncing(link, group) as (sync, maps):
            outcomes = {move.source.topic: move.outcome for move in sync.run(maps)}
        assert outcomes == {gone: Outcome.NO_TOPIC, kept: Outcome.COMMITTED}
        assert TopicPartition(f"copy.{kept}", 0) in admin.groups.committed(group)


@pytest.mark.broker
def test_groups_are_translated_while_a_link_follows_and_one_that_is_refused_is_named(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(kafka.bootstrap, "group-follow", partitions=2)
    good, bad = f"good-{topic}", f"bad-{topic}"
    here, there = TopicPartition(topic, 0), TopicPartition(f"copy.{topic}", 0)
    _fill(kafka.bootstrap, topic, range(10))
    refusal = BrokerError(int(ErrorCode.group_authorization_failed), "writing offsets", "not for you")
    set_offsets = GroupAdmin.set_offsets
    attempts = 0

    def refuse(self: GroupAdmin, group: str, offsets: Any) -> None:
        nonlocal attempts
        if group == bad and there in offsets:
            attempts += 1
            raise refusal
        set_offsets(self, group, offsets)

    monkeypatch.setattr(GroupAdmin, "set_offsets", refuse)
    with Admin(kafka.bootstrap) as admin:
        for group in (bad, good):
            admin.groups.set_offsets(group, {here: 6})
        with running(link_of(kafka.bootstrap, topic, groups=(f"*-{topic}",))):
            eventually(lambda: there in admin.groups.committed(good), "the group is translated")
            first = admin.groups.committed(good)[there].offset
            admin.groups.set_offsets(good, {here: 12})
            eventually(lambda: admin.groups.committed(good)[there].offset > first, "and again, as it moves on")
            eventually(lambda: attempts > 1, "the other one is tried again")
        assert there not in admin.groups.committed(bad)
    (warning,) = (text for *_, text in caplog.record_tuples if "translated" in text)
    assert f"the offsets of group {bad} were not translated, will retry: " in warning
    assert "not for you" in warning


def test_what_became_of_offsets_is_readable_in_80_columns() -> None:
    source, target = TopicPartition("shop.orders", 10), TopicPartition("oslo.shop.orders", 10)
    moves = [
        Move("billing", source, target, 1_234_567, 1_234_570, 1_234_500, outcome)
        for outcome in Outcome
        if outcome is not Outcome.COMMITTED
    ]
    for reverse, side in ((False, "target had"), (True, "source had")):
        lines = moves_text(moves, width=80, reverse=reverse).splitlines()
        assert side in lines[0]
        for move, line in zip(moves, lines[1:], strict=False):
            assert line.endswith(move.outcome.value), "not shortened"
            assert len(line) <= 80
    assert any(line.startswith("ahead there: the group has committed a higher offset") for line in lines)
