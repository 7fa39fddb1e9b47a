"""What a run decides, without a cluster: what begins next, at which rate, what is in the way, and what files hold."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.admin.follower_lag import Followed
from ottla.admin.movement import Reassignment
from ottla.admin.throttles import LEADER_REPLICAS, Throttled, list_change, parse_replicas, topic_changes
from ottla.errors import DeadlineExceeded, InputError
from ottla.model import TopicPartition
from ottla.net.metadata import Broker, Metadata, Partition, Topic
from ottla.operations.moves import Control, Plan, RunFiles, read_plan, write_plan
from ottla.operations.moves.checks import are_ending, obstacles, with_ended
from ottla.operations.moves.leftovers import judge
from ottla.operations.moves.measuring import Copies, Gauge, chosen_to_follow
from ottla.operations.moves.pacing import FLOOR, Limits, Signs, next_moves, next_rate, seconds_left
from ottla.operations.moves.plan_file import plan_json
from ottla.operations.moves.preview import preview
from ottla.operations.moves.progress import Stage
from ottla.operations.moves.reading import Survey
from ottla.operations.moves.run_files import RunState
from ottla.operations.moves.runner import RunOptions, _Run
from ottla.operations.moves.stages import left_bytes, view_of
from ottla.operations.moves.throttling import throttled_by
from ottla.operations.moves.values import Layout, Move

from .simulated import layout


def _tp(index: int) -> TopicPartition:
    return TopicPartition("clicks", index)


def _move(index: int, before: tuple[int, ...], after: tuple[int, ...], size: int = 100) -> Move:
    return Move(_tp(index), before, after, size)


def _plan(*moves: Move) -> Plan:
    return Plan("cluster", moves, len(moves), "drain broker 1")


PLAN = _plan(_move(0, (1, 2), (3, 2)), _move(1, (2, 1), (2, 3), 50))


def test_small_and_unsafe_moves_begin_first_and_a_few_on_each_broker() -> None:
    moves = [_move(index, (1, 2), (3, 2), size) for index, size in enumerate((500, 10, 300, 20))]
    leaders = {move.partition: 2 for move in moves}
    limits = Limits(in_per_broker=2, out_per_broker=5)
    begun = next_moves(moves, [], leaders=leaders, limits=limits)
    assert [move.partition.partition for move in begun] == [1, 3]
    begun = next_moves(moves, [], leaders=leaders, unsafe={_tp(0)}, limits=limits)
    assert [move.partition.partition for move in begun] == [0, 1]
    assert next_moves(moves[:2], moves[2:], leaders=leaders, limits=limits) == []
    sending = Limits(in_per_broker=5, out_per_broker=1)
    assert len(next_moves(moves, [], leaders=leaders, limits=sending)) == 1


def test_moves_that_copy_nothing_do_not_wait() -> None:
    reordered = [_move(index, (1, 2), (2, 1)) for index in range(20)]
    assert len(next_moves(reordered, [], leaders={}, limits=Limits(1, 1))) == 20


CALM = Signs(latency=0.01)


@pytest.mark.parametrize(
    ("now", "rate"),
    [
        (Signs(copied_bytes=1_000_000_000, seconds=10, latency=0.01), 110_000_000),
        (Signs(copied_bytes=100_000, seconds=10), 100_000_000),  # not used: no reason to raise it
        (Signs(copied_bytes=0, seconds=10), 200_000_000),  # below what producers write
        (Signs(under_replicated=1, copied_bytes=1), 50_000_000),
        (Signs(lag_records=60_000, copied_bytes=1), 50_000_000),
        (Signs(latency=1.0, copied_bytes=1), 50_000_000),
    ],
)
def test_an_automatic_rate_follows_how_the_cluster_takes_it(now: Signs, rate: int) -> None:
    assert next_rate(100_000_000, now, calm=CALM) == rate


def test_followers_are_looked_at_on_the_brokers_of_the_plan_and_in_all_topics() -> None:
    followed = [Followed(TopicPartition(topic, at), at % 4, ((at + 1) % 4,)) for topic in "xyz" for at in range(100)]
    assert len(chosen_to_follow(followed, {0, 1, 2, 3}, most=500)) == 300
    few = chosen_to_follow(followed, {0, 1, 2, 3}, most=50)
    assert 40 <= len(few) <= 50
    assert {each.partition.topic for each in few} == {"x", "y", "z"}
    near = chosen_to_follow(followed, {2}, most=500)
    assert {2 in (each.leader, *each.followers) for each in near} == {True}
    assert len(near) == 150
    assert chosen_to_follow([Followed(_tp(0), 1, ())], {1}, most=5) == []


def test_an_automatic_rate_has_a_floor() -> None:
    assert next_rate(FLOOR + 1, Signs(under_replicated=5), calm=CALM) == FLOOR


def test_time_is_estimated_from_the_first_second() -> None:
    assert seconds_left(left_bytes=1000, busiest=500, measured=0, rate=100) == 5
    assert seconds_left(left_bytes=1000, busiest=500, measured=200, rate=100) == 5
    assert seconds_left(left_bytes=1000, busiest=500, measured=0, rate=None) is None
    assert seconds_left(left_bytes=0, busiest=0, measured=0, rate=None) == 0


def _survey(cluster: Layout) -> Survey:
    return Survey(cluster)


def test_a_plan_runs_where_nothing_is_in_its_way() -> None:
    assert obstacles(PLAN, _survey(layout((1, 2), (2, 1), brokers=3)), []) == []


def test_what_is_in_the_way_is_said() -> None:
    cluster = layout((1, 2), (2, 1), (1, 2), brokers=3)
    assert "is for cluster x" in obstacles(replace(PLAN, cluster_id="x"), _survey(cluster), [])[0]
    moved = layout((1, 3), (2, 1), brokers=3)
    assert "clicks-0 (now 1,3, planned from 1,2)" in obstacles(PLAN, _survey(moved), [])[0]
    assert "clicks-1: the partition does not exist" in obstacles(PLAN, _survey(layout((1, 2), brokers=3)), [])[0]
    other = Reassignment(_tp(2), (1, 2, 3), (3,), (2,))
    assert "do not belong to this plan: clicks-2" in obstacles(PLAN, _survey(cluster), [other])[0]
    own = Reassignment(_tp(0), (3, 2, 1), (3,), (1,))
    assert obstacles(PLAN, _survey(cluster), [own]) == []
    down = replace(cluster, members=tuple(replace(m, is_alive=m.id != 3) for m in cluster.members))
    assert "broker 3 is to get 2 replicas and is not up" in obstacles(PLAN, _survey(down), [])[0]
    full = replace(_survey(cluster), usable={3: 120})
    assert "broker 3 is to get 150 bytes, and its disks have room for 120" in obstacles(PLAN, full, [])[0]
    half = replace(full, sizes={_tp(0): {1: 100, 2: 100, 3: 60}})
    assert obstacles(PLAN, half, []) == []  # part of it is there


def test_unhealthy_partitions_are_in_the_way_unless_the_plan_moves_them() -> None:
    cluster = layout((1, 2), (2, 1), (1, 2), brokers=3)
    sick = [replace(place, isr=(2,), leader=-1 if n == 9 else 2) for n, place in enumerate(cluster.placements)]
    thin = replace(_survey(replace(cluster, placements=tuple(sick))), min_in_sync={"clicks": 2})
    assert obstacles(PLAN, thin, []) == [
        "fewer in-sync replicas than min.insync.replicas: clicks-2. Let them catch up first"
    ]
    sick[2] = replace(sick[2], leader=-1)
    offline = replace(thin, layout=replace(cluster, placements=tuple(sick)))
    assert "without a leader: clicks-2" in obstacles(PLAN, offline, [])[0]
    sick[2] = cluster.placements[2]
    assert obstacles(PLAN, replace(thin, layout=replace(cluster, placements=tuple(sick))), []) == []


def _metadata(*partitions: Partition, up: tuple[int, ...] = (1, 2, 3)) -> Metadata:
    brokers = {number: Broker(number, "host", 9092) for number in up}
    return Metadata("cluster", 1, brokers, {"clicks": Topic("clicks", None, partitions)})


def test_the_stage_of_each_partition_is_known() -> None:
    here = (Partition(0, 1, replicas=(1, 2), isr=(1, 2)), Partition(1, 2, replicas=(2, 1), isr=(2, 1)))
    running = [Reassignment(_tp(0), (3, 2, 1), (3,), (1,))]
    view = view_of(PLAN, _metadata(*here), running, min_in_sync={})
    assert (view.stages[_tp(0)], view.stages[_tp(1)]) == (Stage.MOVING, Stage.WAITING)
    assert left_bytes(PLAN, view, {_tp(0): {1: 100, 2: 100, 3: 30}}) == {_tp(0): {3: 70}, _tp(1): {3: 50}}
    down = view_of(PLAN, _metadata(*here, up=(1, 2)), running, min_in_sync={})
    assert down.stages[_tp(1)] is Stage.BLOCKED
    assert down.stalled == frozenset({_tp(0)})
    assert down.lost == frozenset({3})
    done = view_of(PLAN, _metadata(Partition(0, 3, replicas=(3, 2)), here[1]), [], min_in_sync={})
    assert done.stages[_tp(0)] is Stage.DONE
    stale = view_of(PLAN, _metadata(Partition(0, 2, replicas=(3, 2, 1)), here[1]), [], min_in_sync={})
    assert stale.stages[_tp(0)] is Stage.MOVING  # it has arrived, and this broker does not know yet


@pytest.mark.parametrize("replicas", [(1, 2, 4), (4,), (1, 2, 3, 4)])
def test_a_partition_that_another_program_changed_stays_as_it_is(replicas: tuple[int, ...]) -> None:
    """Its old target could take away a replica that another program has just added."""
    view = view_of(PLAN, _metadata(Partition(0, replicas[0], replicas=replicas)), [], min_in_sync={})
    assert view.stages[_tp(0)] is Stage.CHANGED
    assert _tp(0) not in left_bytes(PLAN, view, {})


def test_old_and_new_replicas_together_are_no_move_for_ever() -> None:
    both = _metadata(Partition(0, 2, replicas=(1, 2, 3)))
    view = view_of(PLAN, both, [], min_in_sync={})
    assert (view.stages[_tp(0)], view.ending) == (Stage.MOVING, frozenset({_tp(0)}))
    settled = view_of(PLAN, both, [], min_in_sync={}, settled={_tp(0)})
    assert (settled.stages[_tp(0)], settled.ending) == (Stage.CHANGED, frozenset())
    running = [Reassignment(_tp(0), (3, 2, 1), (3,), (1,))]
    assert view_of(PLAN, both, running, min_in_sync={}, settled={_tp(0)}).stages[_tp(0)] is Stage.MOVING


def test_a_move_that_ends_during_the_checks_is_no_obstacle() -> None:
    running = (Reassignment(_tp(0), (3, 2, 1), (3,), (1,)), Reassignment(_tp(1), (9, 8), (9,), (8,)))
    assert with_ended(PLAN, running, ()) == running[:1]  # of others, only what still runs is in the way
    assert with_ended(PLAN, running, running) == running
    both = Survey(layout((3, 2, 1), (2, 1), brokers=3))
    assert obstacles(PLAN, both, with_ended(PLAN, running, ())) == []
    assert are_ending(PLAN, both, ())
    assert not are_ending(PLAN, both, running)
    assert not are_ending(PLAN, Survey(layout((1, 2), (2, 1), brokers=3)), ())


def _run_that_sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: list[object], **options: float) -> list[str]:
    """What a run says whose looks at the cluster are these: a view, or an error."""
    told: list[str] = []
    steps = iter(looks)

    def step(run: object) -> object:
        found = next(steps)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("ottla.operations.moves.runner._Run._step", step)
    run = _Run(
        None,  # type: ignore[arg-type]
        PLAN,
        RunFiles(tmp_path / "plan.json"),
        RunOptions(interval=0.0, **options),  # type: ignore[arg-type]
        tell=told.append,
        watch=lambda _: None,
        is_stopped=lambda: False,
    )
    assert run._loop() == "complete"
    return told


def test_a_run_outlives_a_cluster_that_does_not_respond(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    late = DeadlineExceeded("listing reassignments", 20.0)
    told = _run_that_sees(monkeypatch, tmp_path, [None, late, late, None, "complete"])
    assert len(told) == 1
    assert "the cluster does not respond" in told[0]
    with pytest.raises(DeadlineExceeded):
        _run_that_sees(monkeypatch, tmp_path, [late, "complete"], lost_seconds=0.0)


def test_what_is_copied_is_counted_although_producers_write() -> None:
    """An automatic rate doubles where nothing is copied: growing partitions must not look like that."""
    here = (Partition(0, 1, replicas=(3, 2, 1)), Partition(1, 2, replicas=(2, 1)))
    running = [Reassignment(_tp(0), (3, 2, 1), (3,), (1,))]
    moving = view_of(PLAN, _metadata(*here), running, min_in_sync={})
    copies = Copies()
    copies.note(PLAN, moving, {_tp(0): {1: 500, 2: 500, 3: 100}})
    assert copies.total == 0  # from before this run
    copies.note(PLAN, moving, {_tp(0): {1: 5000, 2: 5000, 3: 300}})
    assert copies.total == 200
    arrived = _metadata(Partition(0, 3, replicas=(3, 2)), Partition(1, 2, replicas=(2, 3)))
    copies.note(PLAN, view_of(PLAN, arrived, [], min_in_sync={}), {})
    assert copies.total == 200 + 4700 + 50
    copies.note(PLAN, view_of(PLAN, arrived, [], min_in_sync={}), {})
    assert copies.total == 200 + 4700 + 50


def test_a_move_that_falls_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("ottla.operations.moves.measuring.time.monotonic", lambda: clock[0])
    gauge = Gauge(None, PLAN)  # type: ignore[arg-type]
    for at in range(100):
        clock[0] = float(at)
        gauge.speed(1000 + at, {_tp(0)})
    assert gauge.seconds_without_progress == 99
    gauge.speed(2000, {_tp(1)})  # another one has begun, and is larger than planned
    assert gauge.seconds_without_progress == 0


def test_fewer_replicas_than_must_be_in_sync_are_refused() -> None:
    found = Survey(layout((1, 2, 3), (1, 2), brokers=3), min_in_sync={"clicks": 2})
    assert obstacles(_plan(_move(0, (1, 2, 3), (1, 2))), found, ()) == []
    reasons = obstacles(_plan(_move(0, (1, 2, 3), (1,))), found, ())
    assert len(reasons) == 1
    assert "clicks has min.insync.replicas=2: with 1 replicas" in reasons[0]


def test_throttled_replicas_of_others_stay_and_so_does_a_star() -> None:
    moves = throttled_by([*PLAN.moves, _move(2, (1, 2), (2, 1))])
    assert moves == {"clicks": Throttled(frozenset({(0, 1), (0, 2), (1, 1), (1, 2)}), frozenset({(0, 3), (1, 3)}))}
    changes = topic_changes({LEADER_REPLICAS: "7:7"}, add=Throttled(frozenset({(0, 1)})), remove=Throttled())
    assert changes == {LEADER_REPLICAS: "0:1,7:7"}
    assert list_change("*", add=[(0, 1)]) == {}
    assert list_change("0:1", remove=[(0, 1)]) == {"": None}
    assert parse_replicas("0:1, 2:3") == frozenset({(0, 1), (2, 3)})


@given(
    st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9))), st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)))
)
def test_what_is_added_to_a_list_can_be_removed_again(there: set[tuple[int, int]], more: set[tuple[int, int]]) -> None:
    text = ",".join(f"{partition}:{broker}" for partition, broker in there)
    added = list_change(text, add=more).get("", text)
    removed = list_change(added, remove=more - there).get("", added)
    assert (parse_replicas(removed) or set()) == there


def test_throttles_are_left_over_once_nothing_moves() -> None:
    rates = {1: {"leader.replication.throttled.rate": "5"}}
    lists = {"clicks": {LEADER_REPLICAS: "0:1,1:1"}, "users": {LEADER_REPLICAS: "*"}}
    running = [Reassignment(_tp(0), (1, 2), (2,), (1,))]
    moving = judge(rates, lists, running)
    assert moving.topic_changes == {"clicks": {LEADER_REPLICAS: "0:1"}}
    assert moving.broker_changes == {}
    ended = judge(rates, lists, [])
    assert ended.topic_changes == {"clicks": {LEADER_REPLICAS: None}}
    assert ended.broker_changes == {1: {"leader.replication.throttled.rate": None}}


def test_a_preview_counts_what_brokers_receive_and_send() -> None:
    view = preview(PLAN, layout((1, 2), (2, 1), brokers=3), rate=10)
    assert (view.moved_replicas, view.moved_bytes, view.busiest_bytes, view.seconds) == (2, 150, 150, 15.0)
    assert [row.replicas for row in view.brokers] == [(2, 0), (2, 2), (0, 2)]
    assert [row.sent_bytes for row in view.brokers] == [100, 50, 0]
    assert (view.spread(False), view.spread(True)) == ((0, 2), (2, 2))


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    assert read_plan(path) == PLAN
    write_plan(path, _plan())
    assert read_plan(path) == _plan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "is damaged"),
        (lambda text: text[:-9], "is damaged"),
        (lambda text: "[1]", "is not a plan of moves"),
        (lambda text: json.dumps({"kind": "receipt"}), "is not a plan of moves"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2"),
        (lambda text: text.replace('"after": [3, 2]', '"after": [9, 2]'), "its checksum is wrong"),
        (lambda text: text.replace('"moves"', '"Moves"'), "its checksum is wrong"),
        (lambda text: text.encode().replace(b"clicks", b"\xff\xfe").decode("latin-1"), "checksum|damaged"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    assert callable(change)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_plan(path)


@pytest.mark.parametrize(
    "move",
    [
        {"before": []},
        {"before": [1, 1]},
        {"after": [-3, 2]},
        {"after": [1 << 31, 2]},
        {"partition": -1},
        {"size_bytes": 1e400},
        {"size_bytes": -1},
        {"partition": 1},  # the other one has it, too
    ],
)
def test_a_plan_that_cannot_be_is_refused_though_its_checksum_is_right(tmp_path: Path, move: dict[str, object]) -> None:
    rows = plan_json(PLAN)
    del rows["sha256"]
    rows["moves"][0] |= move
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**rows, "sha256": digest}))
    with pytest.raises(InputError, match="is damaged"):
        read_plan(path)


def test_a_file_that_nests_without_end_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 200_000)
    with pytest.raises(InputError, match="is damaged"):
        read_plan(path)


def test_a_run_remembers_what_it_found_and_what_is_wanted_of_it(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "drain.json")
    assert files.control() == Control()
    assert files.state() is None
    files.set_control(Control(is_paused=True, rate="auto"))
    files.save_state(RunState("digest", {4: {"leader.replication.throttled.rate": None}}))
    again = RunFiles(tmp_path / "drain.json")
    assert again.control() == Control(is_paused=True, rate="auto")
    assert again.state() == RunState("digest", {4: {"leader.replication.throttled.rate": None}})
    with files.locked():
        assert again.is_running()
    assert not again.is_running()
    files.forget()
    assert again.state() is None
