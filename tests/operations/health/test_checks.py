"""Every check on clusters on paper: its finding appears with its cause, and is not there without it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from tests.cli.commands import run

from ottla.admin.disks import LogDir, LogDirs
from ottla.admin.groups import ListedGroup
from ottla.admin.movement import Reassignment
from ottla.admin.nodes import BrokerVersions, RegisteredBroker
from ottla.admin.quorum import Quorum, QuorumReplica
from ottla.admin.transactions import OngoingTransaction
from ottla.errors import ConfigError, RequestTimedOut
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker, Metadata, Topic
from ottla.net.targets import Node, Target
from ottla.operations.health.findings import Severity, State, typed
from ottla.operations.health.judging import NAMES, History, check_names, judge
from ottla.operations.health.looking import _Look
from ottla.operations.health.probe_checks import probe_findings
from ottla.operations.health.probe_tally import ProbeTally
from ottla.operations.health.snapshot import PROBE_TOPIC, Growth, Limits, Snapshot

from .clusters import GIB, NOW, brokers, judged, named, part, seen

CLICKS = TopicPartition("clicks", 0)
R3 = (1, 2, 3)
WHOLE = seen(part(0, 1, R3), part(1, 2, (2, 3, 1)), part(2, 3, (3, 1, 2)))
MANY = 1 << 63


def _quorum(*voters: QuorumReplica, leader: int = 1, observers: tuple[QuorumReplica, ...] = ()) -> Quorum:
    return Quorum(leader, 5, 100, voters, observers)


def _node(number: int, *, end: int = 100, fetched: float = 0.0, caught_up: float = 0.0) -> QuorumReplica:
    return QuorumReplica(number, end, NOW - fetched, NOW - caught_up)


def _disk(usable_share: float, **given: Any) -> LogDirs:
    total = 100 * GIB
    directory = LogDir(1, "/data", {CLICKS: 10 * GIB}, total, int(total * usable_share))
    return LogDirs({1: (replace(directory, **given),)})


def _transaction(age: float, timeout: float = 60.0) -> OngoingTransaction:
    since = datetime.fromtimestamp(NOW - age, UTC)
    return OngoingTransaction("payments", 7, 1, "Ongoing", since, timeout, (CLICKS,))


def _speaks(fetch: int, *, level: int = 25, supported: int = 25) -> BrokerVersions:
    name = "metadata.version"
    return BrokerVersions({1: (4, fetch)}, {name: (1, supported)}, {name: level}, 9)


class Case(NamedTuple):
    """A check with what causes it, and what does not."""

    check: str
    severity: Severity
    wrong: Snapshot
    right: Snapshot
    says: str


CASES = [
    Case("unreachable", Severity.CRITICAL, Snapshot(NOW, error="refused"), WHOLE, "no broker can be reached: refused"),
    Case(
        "broker-away",
        Severity.WARNING,
        seen(part(0, 1, R3, (1, 2)), up=(1, 2), quorum=_quorum(_node(1), _node(2), _node(3, fetched=90))),
        WHOLE,
        "broker 3 is not among the brokers of the cluster and holds 1 replica",
    ),
    Case(
        "broker-away",
        Severity.NOTE,
        seen(up=(1, 2), registered={3: RegisteredBroker(3, "b3", 9092, None, True)}),
        seen(registered={3: RegisteredBroker(3, "b3", 9092)}),
        "broker 3 is registered but not up",
    ),
    Case(
        "broker-silent",
        Severity.CRITICAL,
        replace(WHOLE, silent={2: "no answer within 3 s"}),
        WHOLE,
        "broker 2 does not answer (no answer within 3 s); it leads 1 partition",
    ),
    Case("no-controller", Severity.CRITICAL, replace(WHOLE, quorum_error="timed out"), WHOLE, "timed out"),
    Case(
        "no-controller",
        Severity.CRITICAL,
        replace(WHOLE, quorum=_quorum(_node(1), leader=-1)),
        replace(WHOLE, quorum=_quorum(_node(1))),
        "the controllers have no leader",
    ),
    Case(
        "controller-lag",
        Severity.WARNING,
        replace(WHOLE, quorum=_quorum(_node(1), _node(2), _node(3, end=40, fetched=60, caught_up=60))),
        replace(WHOLE, quorum=_quorum(_node(1), _node(2), _node(3, end=40, caught_up=3))),
        "controller 3 of 3 has not caught up with the metadata log for 1m (60 records behind); one more loss",
    ),
    Case(
        "controller-lag",
        Severity.WARNING,  # it has everything, because nothing is written, and is dead
        replace(WHOLE, quorum=_quorum(_node(1), _node(2, fetched=60, caught_up=60), _node(3), _node(4), _node(5))),
        replace(WHOLE, quorum=_quorum(_node(1), _node(2, caught_up=60), _node(3), _node(4), _node(5))),
        "controller 2 of 5 has not caught up with the metadata log for 1m (0 records behind); 1 more may be lost",
    ),
    Case(
        "metadata-lag",
        Severity.WARNING,
        replace(WHOLE, quorum=_quorum(_node(9), leader=9, observers=(_node(2, end=1, caught_up=40),))),
        replace(WHOLE, quorum=_quorum(_node(9), leader=9, observers=(_node(2), _node(77, end=1, caught_up=40)))),
        "broker 2 has not caught up with the metadata log for 40s",
    ),
    Case(
        "versions-differ",
        Severity.WARNING,
        replace(WHOLE, versions={1: _speaks(17), 2: _speaks(17), 3: _speaks(16)}),
        replace(WHOLE, versions={1: _speaks(17), 2: _speaks(17), 3: _speaks(17)}),
        "brokers 3 speak other versions of the protocol than 1, 2",
    ),
    Case(
        "feature-level",
        Severity.NOTE,
        replace(WHOLE, versions={1: _speaks(17, level=20), 2: _speaks(17, level=20)}),
        replace(WHOLE, versions={1: _speaks(17, level=20, supported=20), 2: _speaks(17, level=20)}),
        "metadata.version is at level 20, and all brokers support 25",
    ),
    Case(
        "offline-partitions",
        Severity.CRITICAL,
        seen(part(0, -1, (3,), (3,)), part(1, 1, R3), up=(1, 2)),
        WHOLE,
        "1 partition (clicks-0) has no leader and can be neither read nor written (broker 3)",
    ),
    Case(
        "under-min-isr",
        Severity.CRITICAL,
        seen(part(0, 1, R3, (1,)), part(1, 1, R3, (1,))),
        seen(part(0, 1, R3, (1,)), min_isr="1"),
        "2 partitions (clicks-0, clicks-1) have too few replicas in sync",
    ),
    Case(
        "at-min-isr",
        Severity.WARNING,
        seen(part(0, 1, R3, (1, 3))),
        seen(part(0, 1, R3)),
        "1 partition (clicks-0) has as few replicas in sync as writes need: one more loss stops them (broker 2)",
    ),
    Case(
        "under-replicated",
        Severity.WARNING,
        seen(part(0, 1, R3, (1, 2)), min_isr="1"),
        seen(
            part(0, 1, R3, (1, 2)), min_isr="1", reassignments=(Reassignment(CLICKS, R3, (3,), ()),)
        ),  # the replica is new
        "1 partition (clicks-0) has replicas that are not in sync (broker 3)",
    ),
    Case(
        "leaders-not-preferred",
        Severity.NOTE,
        seen(part(0, 2, R3), part(1, 3, R3)),
        seen(part(0, 2, R3, (2, 3)), min_isr="1"),  # the preferred one cannot lead yet
        "2 partitions (clicks-0, clicks-1) are not led by the preferred replica: broker 1 could lead them",
    ),
    Case(
        "single-replica",
        Severity.NOTE,
        seen(part(0, 1, (1,))),
        seen(part(0, 1, (1,)), up=(1,)),  # with a single broker there is no choice
        "1 topic (clicks) has a single replica",
    ),
    Case(
        "min-isr-above-replicas",
        Severity.WARNING,
        seen(part(0, 1, (1, 2)), min_isr="3"),
        seen(part(0, 1, (1, 2))),
        "1 topic (clicks) has min.insync.replicas above their replicas",
    ),
    Case(
        "min-isr-equals-replicas",
        Severity.NOTE,
        seen(part(0, 1, (1, 2))),
        seen(part(0, 1, R3)),
        "1 topic (clicks) has min.insync.replicas equal to their replicas",
    ),
    Case(
        "leaders-skew",
        Severity.NOTE,
        seen(*(part(number, 1, R3) for number in range(50))),
        seen(*(part(number, 1, R3) for number in range(49))),  # so few say nothing
        "broker 1 has 50 leaders, 3.0 times its fair share",
    ),
    Case(
        "replicas-skew",
        Severity.NOTE,
        seen(*(part(number, 1, (1,)) for number in range(60))),
        seen(*(part(number, 1 + number % 3, (1 + number % 3,)) for number in range(60))),
        "broker 1 has 60 replicas, 3.0 times its fair share",
    ),
    Case(
        "bytes-skew",
        Severity.NOTE,
        replace(WHOLE, log_dirs=LogDirs({1: (LogDir(1, "/d", {CLICKS: 30 * GIB}),)})),
        replace(WHOLE, log_dirs=LogDirs({1: (LogDir(1, "/d", {CLICKS: 9 * GIB}),)})),
        "broker 1 has 30GiB of data, 3.0 times its fair share",
    ),
    Case(
        "disk-full",
        Severity.WARNING,
        replace(WHOLE, log_dirs=_disk(0.15)),
        replace(WHOLE, log_dirs=_disk(0.25)),
        "broker 1: the disk of /data is 85% full, 15GiB left; most of it is clicks (10GiB)",
    ),
    Case(
        "disk-full", Severity.CRITICAL, replace(WHOLE, log_dirs=_disk(0.05)), replace(WHOLE, log_dirs=_disk(1)), "95%"
    ),
    Case(
        "disk-filling",
        Severity.WARNING,
        replace(WHOLE, log_dirs=_disk(0.5), growth={CLICKS: Growth(50 * GIB / 86_400 / 2)}),
        replace(WHOLE, log_dirs=_disk(0.5), growth={CLICKS: Growth(50 * GIB / 86_400 / 2, 49 * GIB)}),  # retention
        "broker 1: the disk of /data is full in 2d if it goes on to grow by",
    ),
    Case(
        "log-dir-offline",
        Severity.CRITICAL,
        replace(WHOLE, log_dirs=_disk(0.5, error="KAFKA_STORAGE_ERROR")),
        replace(WHOLE, log_dirs=_disk(0.5)),
        "broker 1 cannot use its log directory /data: KAFKA_STORAGE_ERROR",
    ),
    Case(
        "reassignment",
        Severity.NOTE,
        replace(WHOLE, reassignments=(Reassignment(CLICKS, R3, (3,), (1,)),)),
        WHOLE,
        "replicas of 1 partition move (clicks-0)",
    ),
    Case(
        "throttle-left",
        Severity.WARNING,
        seen(
            settings={"clicks": {"leader.replication.throttled.replicas": "0:1"}},
            topics=WHOLE.topics,
            own_settings={2: {"leader.replication.throttled.rate": "1000"}},
        ),
        seen(own_settings={2: {"leader.replication.throttled.rate": str(MANY - 1)}}),  # what no rate looks like
        "replication is throttled although no replicas move: 1 rate (broker 2) and lists of 1 topic (clicks)",
    ),
    Case(
        "open-transaction",
        Severity.WARNING,
        replace(WHOLE, transactions=(_transaction(400.0),)),
        replace(WHOLE, transactions=(_transaction(200.0),)),
        "the transaction of 'payments' (producer id 7) is open for 6m40s, and readers of clicks-0 wait; its timeout is",
    ),
    Case(
        "group-rebalancing",
        Severity.NOTE,
        replace(WHOLE, groups=(ListedGroup("billing", "PreparingRebalance", "classic", "consumer", 1),)),
        replace(WHOLE, groups=(ListedGroup("billing", "Stable", "classic", "consumer", 1),)),
        "group billing is rebalancing (PreparingRebalance)",
    ),
]
IDS = [f"{number}-{case.check}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_finding_appears_with_its_cause_and_goes_with_it(case: Case) -> None:
    found = named(case.wrong, case.check)
    assert [each.severity for each in found[:1]] == [case.severity]
    assert case.says in found[0].reason
    assert not named(case.right, case.check)


def test_every_check_has_a_case() -> None:
    assert {case.check for case in CASES} | {"probe"} == {*NAMES}


def test_a_whole_cluster_is_healthy() -> None:
    assert judged(WHOLE) == []
    assert judge(WHOLE)[0].state is State.HEALTHY


def test_notes_do_not_count_warnings_degrade_and_the_critical_makes_unhealthy() -> None:
    assert judge(seen(part(0, 2, R3)))[0].state is State.HEALTHY
    assert judge(seen(part(0, 1, R3, (1, 2))))[0].state is State.DEGRADED
    assert judge(seen(part(0, 1, R3, (1,))))[0].state is State.UNHEALTHY


def test_a_partition_counts_for_the_worst_only() -> None:
    for isr, check in (((1,), "under-min-isr"), ((1, 2), "at-min-isr")):
        assert [each.check for each in judged(seen(part(0, 1, R3, isr)))] == [check]


def test_the_topic_of_the_probe_is_judged_by_the_probe_alone() -> None:
    topics = {PROBE_TOPIC: replace(WHOLE.topics["clicks"], name=PROBE_TOPIC, partitions=(part(0, -1, (3,)),))}
    assert judged(seen(topics=topics)) == []


def test_an_ignored_check_neither_shows_nor_counts() -> None:
    wrong = seen(part(0, 1, R3, (1,)))
    assert judge(wrong, ignored=check_names(["under-min-isr"]))[0].state is State.HEALTHY
    with pytest.raises(ConfigError, match="there is no check 'nonsense': there are at-min-isr"):
        check_names(["nonsense"])


def test_what_appears_between_two_looks_has_its_time_and_what_was_there_before_has_none() -> None:
    first, history = judge(seen(part(0, 1, R3, (1, 2))))
    assert [each.since for each in first.findings] == [None]
    later = replace(seen(part(0, 1, R3, (1, 2)), up=(1, 2)), taken_at=NOW + 5)
    second, history = judge(later, history)
    assert {each.check: each.since for each in second.findings} == {"at-min-isr": None, "broker-away": NOW + 5}
    third, history = judge(replace(later, taken_at=NOW + 9), history)
    assert {each.check: each.since for each in third.findings} == {"at-min-isr": None, "broker-away": NOW + 5}
    _, history = judge(replace(WHOLE, taken_at=NOW + 12), history)
    again, _ = judge(replace(later, taken_at=NOW + 15), history)
    assert {each.since for each in again.findings} == {NOW + 15}


def test_a_broker_is_away_since_it_last_fetched_metadata() -> None:
    [finding] = named(CASES[1].wrong, "broker-away")
    assert finding.since == NOW - 90


def test_a_group_that_goes_on_rebalancing_is_stuck() -> None:
    group = ListedGroup("billing", "PreparingRebalance", "classic", "consumer", 1)
    history = History()
    for seconds, severity in ((0, Severity.NOTE), (59, Severity.NOTE), (60, Severity.WARNING)):
        verdict, history = judge(replace(WHOLE, groups=(group,), taken_at=NOW + seconds), history)
        assert [each.severity for each in verdict.findings] == [severity]
    assert verdict.findings[0].since == NOW
    stable = replace(WHOLE, groups=(replace(group, state="Stable"),), taken_at=NOW + 70)
    _, history = judge(stable, history)
    verdict, _ = judge(replace(WHOLE, groups=(group,), taken_at=NOW + 80), history)
    assert verdict.findings[0].severity is Severity.NOTE


def test_growth_between_two_looks_replaces_what_the_logs_say() -> None:
    quiet = replace(WHOLE, log_dirs=_disk(0.5), growth={CLICKS: Growth(1.0)})
    _, history = judge(quiet)
    fuller = replace(quiet, log_dirs=_disk(0.49), taken_at=NOW + 60)
    [finding] = named(fuller, "disk-filling", history=history)
    assert finding.severity is Severity.CRITICAL
    assert "is full in 49m" in finding.reason
    too_soon = replace(fuller, taken_at=NOW + 5)
    assert not named(too_soon, "disk-filling", history=history)


def test_limits_decide_from_where_on_a_number_is_wrong() -> None:
    case = replace(WHOLE, transactions=(_transaction(3.0),))
    assert not named(case, "open-transaction")
    assert named(case, "open-transaction", limits=Limits(transaction_seconds=1.0))


def test_a_throttle_that_a_running_reassignment_uses_is_not_left() -> None:
    wrong = next(case.wrong for case in CASES if case.check == "throttle-left")
    running = replace(wrong, reassignments=(Reassignment(CLICKS, R3, (3,), ()),))
    assert not named(running, "throttle-left")
    assert not named(replace(wrong, reassignments=None), "throttle-left")  # nobody knows


def test_a_broker_that_fails_the_probe_is_named() -> None:
    tally = ProbeTally(2)
    tally.sent(0, 1.0)
    tally.write_failed(0, "no answer", NOW)
    [finding] = probe_findings([tally.report()])
    assert (finding.check, finding.severity, finding.subject, finding.since) == (
        "probe",
        Severity.CRITICAL,
        "broker 2",
        NOW,
    )
    tally.works()
    assert not [*probe_findings([tally.report()])]


def _suggested() -> list[str]:
    found = [each for case in CASES for each in judged(case.wrong)]
    tally = ProbeTally(2)
    tally.write_failed(0, "no answer", NOW)
    return sorted({each.command for each in [*found, *probe_findings([tally.report()])]})


@pytest.mark.parametrize("line", _suggested())
def test_suggested_commands_are_complete_and_lead_on(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "kafka-features.sh":  # a tool of Kafka's
        assert words[1:4] == ["--bootstrap-server", "HOST:PORT", "upgrade"]
        return
    assert words.pop(0) == "ottla"
    assert words != ["health", "--json"], "it would say the same again"
    if words[0] == "health":
        words += ["--for", "100ms"]
    # Nothing listens there: a command that lacks something says so before it connects.
    result = run(*words, env={"OTTLA_BOOTSTRAP": "127.0.0.1:1"})
    is_verdict = words[0] == "health" and words[1] != "probe"
    assert result.exit_code == (3 if is_verdict else 1), result.output
    assert "no broker" in result.output


def test_a_name_that_begins_with_a_hyphen_is_no_option_in_a_command() -> None:
    assert typed("groups", "describe", name="-x y") == "ottla groups describe -- '-x y'"
    assert typed("groups", "describe", name="x-") == "ottla groups describe x-"
    group = ListedGroup("-x", "PreparingRebalance", "consumer", "classic", 1)
    (found,) = [each for each in judged(replace(WHOLE, groups=(group,))) if each.check == "group-rebalancing"]
    assert found.command == "ottla groups describe -- -x"


def test_a_broker_that_reaches_no_controller_does_not_speak_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum, asked = _quorum(_node(1)), []

    def find(cluster: Cluster, *, via: Target, deadline: Deadline) -> Quorum:
        asked.append(via)
        if via == Node(1):
            raise RequestTimedOut("broker 1", "DescribeQuorum v2 was not answered within 5.0 s")
        return quorum

    monkeypatch.setattr("ottla.operations.health.looking.find_quorum", find)
    metadata = Metadata(brokers={number: Broker(number, "host", 9092) for number in (1, 2)})
    with Cluster("127.0.0.1:1") as cluster:
        one = _Look(cluster, metadata, Deadline.after(60), NOW)
        assert one._quorum(list(metadata.brokers.values())) is quorum
        assert (one._quorum_error, asked) == (None, [Node(1), Node(2)])
        other = _Look(cluster, metadata, Deadline.after(60), NOW)
        assert other._quorum([metadata.brokers[1]]) is None
        assert "DescribeQuorum" in str(other._quorum_error)


def test_settings_that_a_user_may_not_see_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"clicks": {"min.insync.replicas": "2"}}
    monkeypatch.setattr("ottla.operations.health.looking.topic_settings", lambda *_, **__: settings)
    with Cluster("127.0.0.1:1") as cluster:
        metadata = Metadata(topics={name: Topic(name) for name in ("clicks", "orders")})
        one = _Look(cluster, metadata, Deadline.after(60), NOW)
        assert one._settings() == settings
        assert one._unseen == ["settings of 1 topic (orders): not told to this user"]


def test_nothing_of_a_cluster_out_of_reach_is_judged() -> None:
    unreachable = Snapshot(NOW, error="refused", brokers=brokers(1), quorum_error="x")
    assert [each.check for each in judged(unreachable)] == ["unreachable"]
