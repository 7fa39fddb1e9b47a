"""What every store can do: the same as the rules, for several nodes at once, and through the death of any of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from tests.waiting import eventually

from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter, Counts, Failure, Grant, Lease, Move, PartitionState, Pulse, Seen
from ottla.errors import ConfigError, InputError, StoreIncompatible, StoreUnavailable
from ottla.model import OffsetRange, TopicPartition

from .agreement import HIGH, Agreement
from .conftest import ALL_STORES, SHARED_STORES, OpenStore
from .servers import RedisServer

every_store = pytest.mark.parametrize("url", ALL_STORES, indirect=True)
every_shared_store = pytest.mark.parametrize("url", SHARED_STORES, indirect=True)

CLICKS = TopicPartition("clicks", 0)


def planned(store: Store, many: int, *, partitions: int = 1, charter: Charter | None = None) -> list[OffsetRange]:
    """Units of ten offsets each, which wait in a new group."""
    store.found(charter or Charter())
    lease = store.lead("planner")
    assert lease is not None
    units = [
        OffsetRange("clicks", i % partitions, i // partitions * 10, i // partitions * 10 + 10) for i in range(many)
    ]
    by_partition = [tuple(units[partition::partitions]) for partition in range(partitions)]
    moves = [
        Move(TopicPartition("clicks", i), None, some[-1].stop, some) for i, some in enumerate(by_partition) if some
    ]
    assert store.plan(lease, moves)
    return units


def failure(unit: OffsetRange, reason: str = "boom") -> Failure:
    return Failure(unit, 0, reason, "Traceback …", "host", 0.1 + 0.2)


# The same answers as the rules

_CHANCE = st.randoms(use_true_random=False)


class Machine(RuleBasedStateMachine):
    """Histories that Hypothesis shrinks."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    @initialize(chance=_CHANCE)
    def begin(self, chance: Random) -> None:
        self.agreement = Agreement(self.url, chance)

    @rule(chance=_CHANCE)
    def step(self, chance: Random) -> None:
        self.agreement.step(chance)

    def teardown(self) -> None:
        self.agreement.end()


@every_store
def test_a_store_gives_the_answers_of_the_rules(url: str) -> None:
    run_state_machine_as_test(
        lambda: Machine(url),  # type: ignore[arg-type]
        settings=settings(max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=[*HealthCheck]),
    )


def agree(url: str, seed: int, steps: int) -> None:
    chance = Random(seed)
    agreement = Agreement(url, chance)
    for _ in range(steps):
        agreement.step(chance)
    agreement.end()


@pytest.mark.parametrize("url", ["memory", "sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_a_store_gives_the_answers_of_the_rules_for_long(url: str, seed: int) -> None:
    agree(url, seed, 400)


@pytest.mark.long
@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_a_store_gives_the_answers_of_the_rules_in_many_histories(url: str) -> None:
    for seed in range(100, 300):
        agree(url, seed, 500)


# Whatever a history does not show


@every_store
def test_of_two_charters_the_first_one_stays(open_one: OpenStore) -> None:
    first = Charter(ordered=True, max_attempts=2, lease_seconds=3.5)
    assert open_one().found(first) == first
    assert open_one().found(Charter()) == first


@every_store
def test_a_group_that_is_not_founded_is_empty_and_begins_nothing(store: Store) -> None:
    unit, lease = OffsetRange(*CLICKS, 0, 10), Lease(1, "a")
    assert not store.exists()
    assert store.take("a", 3) == []
    assert store.renew([(unit, lease), (unit, lease)]) == [False, False]
    assert not store.finish(unit, lease, 10)
    assert not store.fail(unit, lease, failure(unit))
    assert not store.reclaim(unit, Seen(lease, 0), failure(unit))
    assert not any((store.stay(lease), store.resign(lease), store.plan(lease, []), store.goodbye("n")))
    assert not any((store.retry(unit), store.drop(unit)))
    store.remove_topics(["clicks"])
    for begin in (
        lambda: store.lead("a"),
        lambda: store.add_topics({"clicks": ""}),
        lambda: store.raise_number(5),
        lambda: store.reset(CLICKS, 5),
        lambda: store.hello("n", {}),
        lambda: store.note("k", b"v"),
    ):
        with pytest.raises(StoreUnavailable, match=r"has no group 'group-\w+': no node has started it"):
            begin()  # type: ignore[no-untyped-call]
    assert store.pulse() == Pulse(None, ())
    assert store.look() == Rules(Charter()).look()
    assert (store.failures(), store.waiting(), store.notes()) == ([], [], {})


@every_store
def test_a_group_that_was_forgotten_can_be_founded_again(store: Store) -> None:
    planned(store, 3)
    store.take("a")
    store.forget()
    assert not store.exists()
    assert store.look() == Rules(Charter()).look()
    assert store.found(Charter(ordered=True)) == Charter(ordered=True)
    assert store.exists()
    assert store.look() == Rules(Charter()).look()


@every_store
def test_groups_do_not_see_one_another(url: str, store: Store) -> None:
    planned(store, 2)
    other = open_store(url, f"{store!r} and another")
    try:
        assert other.found(Charter(max_attempts=1)) == Charter(max_attempts=1)
        assert other.take("a") == []
        other.forget()
        assert len(store.take("a", 9)) == 2
    finally:
        other.close()


@every_store
def test_a_closed_store_leaves_its_group_for_others(open_one: OpenStore) -> None:
    first = open_one()
    units = planned(first, 2)
    first.close()
    assert open_one().waiting() == units


@every_store
def test_offsets_are_exact_up_to_the_highest(store: Store) -> None:
    store.found(Charter())
    lease = store.lead("a")
    assert lease is not None
    units = tuple(OffsetRange(*CLICKS, start, start + 1) for start in (2**53, 2**53 + 1, HIGH - 2, HIGH - 1))
    assert store.plan(lease, [Move(CLICKS, None, HIGH, units)])
    assert store.waiting() == list(units)
    store.raise_number(2**53)
    grants = store.take("a", 9)
    assert [grant.range for grant in grants] == list(units)
    assert [grant.lease.number - 2**53 for grant in grants] == [1, 2, 3, 4]
    assert store.finish(grants[0].range, grants[0].lease, 2**53 + 1)
    assert store.look().partitions == (PartitionState(CLICKS, HIGH, 2**53 + 1, 0, 3, 0),)


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_offsets_beyond_the_highest_are_refused(store: Store) -> None:
    store.found(Charter())
    lease = store.lead("a")
    assert lease is not None
    with pytest.raises(InputError, match=r"2\*\*63"):
        store.plan(lease, [Move(CLICKS, None, HIGH + 1)])
    with pytest.raises(InputError, match=r"2\*\*63"):
        store.raise_number(2**63)
    assert store.look().partitions == ()


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_a_report_must_consist_of_plain_values(store: Store) -> None:
    store.found(Charter())
    with pytest.raises(InputError, match="a node's report must contain only JSON values"):
        store.hello("n", {"lock": threading.Lock()})


# Several at once


def work(store: Store, holder: str, done: list[OffsetRange]) -> None:
    """Takes and finishes until nothing is left."""
    while grants := store.take(holder, 3):
        for grant in grants:
            assert store.finish(grant.range, grant.lease, grant.range.stop)
            done.append(grant.range)


def work_in_a_process(url: str, group: str, number: int, folder: Path) -> None:
    store = open_store(url, group)
    done: list[OffsetRange] = []
    work(store, f"process-{number}", done)
    store.close()
    (folder / f"{number}.txt").write_text("\n".join(str(unit) for unit in done))


@every_shared_store
def test_four_processes_do_each_unit_once(url: str, store: Store, group: str, tmp_path: Path) -> None:
    units = planned(store, 500 if url.startswith("sqlite") else 2_000, partitions=7)
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work_in_a_process, args=(url, group, i, tmp_path)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    done = [line for i in range(4) for line in (tmp_path / f"{i}.txt").read_text().splitlines()]
    assert sorted(done) == sorted(str(unit) for unit in units)
    snapshot = store.look()
    assert snapshot.counts == Counts(done=len(units), offsets=10 * len(units))
    assert all(state.done == state.planned for state in snapshot.partitions)


@every_store
def test_threads_share_a_store(store: Store) -> None:
    units = planned(store, 100, partitions=3)
    done: list[OffsetRange] = []
    threads = [threading.Thread(target=work, args=(store, f"thread-{i}", done)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == sorted(units)


def work_until_killed(store: Store) -> None:
    """In a fork, with the store of the parent, as a careless program may do it."""
    work(store, "doomed", [])
    signal.pause()


@every_shared_store
def test_a_process_that_is_killed_leaves_a_store_that_others_go_on_with(store: Store) -> None:
    units = planned(store, 60, partitions=4)
    fork = multiprocessing.get_context("fork")
    for goal in (7, 19, 31):
        doomed = fork.Process(target=work_until_killed, args=(store,))
        doomed.start()
        eventually(lambda goal=goal: store.look().counts.done >= goal, f"{goal} units are done")  # type: ignore[misc]
        assert doomed.pid is not None
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.join(10)
        for out in store.pulse().out:
            assert store.reclaim(out.range, out.seen, failure(out.range))
    work(store, "survivor", [])
    snapshot = store.look()
    assert snapshot.counts.done == len(units)
    assert snapshot.counts.offsets == 10 * len(units)
    assert (snapshot.out, store.waiting()) == ((), [])
    assert all(state.done == state.planned for state in snapshot.partitions)


def beat_and_compare(store: Store, grant: Grant, times: int) -> None:
    for _ in range(times):
        assert store.renew([(grant.range, grant.lease)]) == [True]
        assert grant.range in [out.range for out in store.pulse().out]


@pytest.mark.parametrize("url", ["sqlite", "redis", "rediss"], indirect=True)
def test_a_forked_child_and_its_parent_hear_only_their_own_answers(store: Store) -> None:
    planned(store, 2, partitions=2)
    mine, its = store.take("a", 2)
    child = multiprocessing.get_context("fork").Process(target=beat_and_compare, args=(store, its, 100))
    child.start()
    beat_and_compare(store, mine, 100)
    child.join(60)
    assert child.exitcode == 0
    assert [out.seen.beat for out in store.pulse().out] == [100, 100]


def test_another_redis_is_used_where_there_is_one(another_redis_server: RedisServer, redis_server: RedisServer) -> None:
    """Then all of these tests were run with it; else this says what is missing."""
    assert another_redis_server.ask("INFO", "server") != redis_server.ask("INFO", "server")


# What is not an address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://x", "store kafka://... is not supported; accepted are redis://HOST:PORT/DB"),
        ("redis", "is invalid: it does not begin with redis://"),
        ("memory://somewhere", "a store in memory has the address memory:// and nothing after it"),
        ("sqlite://x", "is not sqlite:///RELATIVE/PATH or sqlite:////ABSOLUTE/PATH"),
        ("sqlite:///", "is not sqlite:///RELATIVE"),
        ("sqlite:///:memory:", "for a store in memory, use memory://"),
    ],
)
def test_an_address_that_is_none_is_refused_with_what_is_accepted(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, "g")
    assert says in str(caught.value)


@pytest.mark.parametrize("group", ["", "a{b}", "a\nb", "x" * 201])
def test_a_group_has_a_name_that_can_be_shown(group: str) -> None:
    with pytest.raises(ConfigError, match="a group name must have 1 to 200 printable characters without braces"):
        open_store("memory://", group)


def test_a_version_that_is_not_understood_is_refused(tmp_path: Path, group: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/fleet.db", group)
    charter = Charter()
    object.__setattr__(charter, "version", 99)
    with pytest.raises(StoreIncompatible, match=r"has version 99, and this Ottla supports version 1"):
        store.found(charter)
    store.close()
