"""Worker processes that are killed, frozen and cut off while they work; Redis that restarts, a broker that dies.

Afterwards every offset was handled, whatever was handled twice was another attempt at a unit that somebody lost, and
the store has nothing left. A failure tells in which order the faults came.
"""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.brokers import mend
from tests.faults.breaking import leaders
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter
from ottla.errors import StoreUnavailable
from ottla.net import Cluster

from .crew import Cable, Job, Worker, missing, out_of_order, pid_of, read_events, read_lines, repeated, settled, write
from .servers import RedisServer

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARTITIONS = 6
WORKERS = 4
LEASE_SECONDS = 2.0
PATIENCE = 60.0
UNIT = 5000
ENOUGH = 10 * UNIT
"""Records of a partition that should wait at any time."""


class Fire:
    """A group of worker processes, each with a cable of its own to Redis, and what is done to them."""

    def __init__(self, stack: ExitStack, kafka: LocalCluster, redis: RedisServer, job: Job) -> None:
        self.kafka = kafka
        self.topic = job.topics[0]
        self.each = 0
        """Records in each partition."""
        self.redis = redis
        self.chance = random.Random()
        self.path = Path(job.path)
        self.store: Store = open_store(f"redis://127.0.0.1:{redis.port}", job.group)
        self._job = job
        self._stack = stack
        self._cables = [stack.enter_context(Cable(redis.port)) for _ in range(WORKERS)]
        self._workers: list[Worker] = []
        self.deeds: list[str] = []
        stack.callback(self.store.close)
        stack.callback(self._end)
        for _ in range(WORKERS):
            self._hire()

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """Where the partitions end."""
        return {(self.topic, index): self.each for index in range(PARTITIONS)}

    def run(self, *, records: int, seconds: float, also: tuple[Callable[[], None], ...] = ()) -> None:
        """One fault after another for so long, each kind at least once; then all is healed, and the work gets done."""
        kinds = [self.kill, self.kill_planner, self.freeze, self.restart_redis, self.cut_network, *also]
        until = time.monotonic() + seconds
        while not self.deeds or time.monotonic() < until:
            self.chance.shuffle(kinds)
            for deed in kinds:
                self.flows()
                deed()
        self._write(max(0, records // PARTITIONS - self.each))
        settled(self.store.look, self.ends, seconds=2 * PATIENCE)

    def flows(self) -> None:
        """Waits until some more units are done."""
        done = self.store.look().counts.done
        self._await(lambda: self._has_work() and self.store.look().counts.done > done, "more units are done")

    # What is done to it

    def kill(self) -> None:
        """One worker, with SIGKILL; a new one comes."""
        self._kill(self.chance.randrange(WORKERS))
        self.deeds.append("kill")

    def kill_planner(self) -> None:
        """The one that plans: another one does so soon."""
        planner = self.store.look().planner
        if planner is None or pid_of(planner.lease.holder) not in [worker.pid for worker in self._workers]:
            return
        pid = pid_of(planner.lease.holder)
        self._kill(next(number for number, worker in enumerate(self._workers) if worker.pid == pid))
        began = time.monotonic()
        self._await(
            lambda: (now := self.store.look().planner) is not None and now.lease.number > planner.lease.number,
            "another one plans",
        )
        self.deeds.append(f"kill planner, {time.monotonic() - began:.1f} s")

    def freeze(self) -> None:
        """Freeze one worker until others have its units, then let it continue without knowing."""
        worker = self.chance.choice(self._workers)
        self._await(lambda: self._has_work() and self._holds(worker.pid), f"{worker.pid} holds a unit")
        worker.signal(signal.SIGSTOP)
        self._await(lambda: not self._holds(worker.pid), f"nobody waits for {worker.pid}")
        worker.signal(signal.SIGCONT)
        self.deeds.append("freeze")

    def restart_redis(self) -> None:
        """With SIGKILL. It has an append-only file."""
        self.redis.kill()
        self.redis.start()
        eventually(self._is_back, "it has read its file", seconds=PATIENCE)
        self.deeds.append("restart redis")

    def cut_network(self) -> None:
        """Between one worker and Redis, until others have what it had."""
        number = self.chance.randrange(WORKERS)
        pid = self._workers[number].pid
        self._await(lambda: self._has_work() and self._holds(pid), f"{pid} holds a unit")
        self._cables[number].cut()
        self._await(lambda: not self._holds(pid), f"nobody waits for {pid}")
        self._cables[number].mend()
        self.deeds.append("cut network")

    # Parts

    def _is_back(self) -> bool:
        try:
            self.store.look()
        except StoreUnavailable:
            return False
        return True

    def _hire(self) -> None:
        number = len(self._workers)
        self._workers.append(self._worker(number))

    def _kill(self, number: int) -> None:
        self._workers[number].kill()
        self._workers[number] = self._worker(number)

    def _worker(self, number: int) -> Worker:
        fields = {name: getattr(self._job, name) for name in Job.__slots__}
        return Worker(Job(**fields | {"store": f"redis://127.0.0.1:{self._cables[number].port}"}))

    def _holds(self, pid: int) -> bool:
        return any(pid_of(out.seen.lease.holder) == pid for out in self.store.pulse().out)

    def _has_work(self) -> bool:
        """There is always something to do, or there will be at once."""
        if self.each - min((state.done for state in self.store.look().partitions), default=0) < ENOUGH:
            self._write(ENOUGH)
        return True

    def _write(self, more: int) -> None:
        write(self.kafka.bootstrap, self.topic, more, partitions=PARTITIONS, first=self.each)
        self.each += more

    def _await(self, condition: Callable[[], object], what: str) -> None:
        try:
            eventually(condition, what, seconds=PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}, after {self.deeds}: {self._told()}") from None

    def _told(self) -> str:
        snapshot = self.store.look()
        log = Path(f"{self.path}.log").read_text()[-3000:]
        return f"{snapshot.planner} {snapshot.counts} {snapshot.partitions} {snapshot.out}\n{log}"

    def _end(self) -> None:
        for worker in self._workers:
            if worker.is_alive:
                worker.signal(signal.SIGCONT)
                worker.kill()


@pytest.fixture(scope="module")
def client(kafka: LocalCluster) -> Iterator[Cluster]:
    """Connected to the brokers."""
    with Cluster(kafka.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One that forgets nothing when it is killed."""
    with RedisServer(tmp_path / "redis", "--appendonly", "yes") as server:
        yield server


@contextmanager
def on_fire(kafka: LocalCluster, client: Cluster, redis: RedisServer, path: Path, **options: object) -> Iterator[Fire]:
    """Workers on a topic that will have records."""
    topic = f"fire-{uuid.uuid4().hex[:6]}"
    Admin(client).create_topic(topic, partitions=PARTITIONS, replicas=3)
    given = {"topics": (topic,), "lease_seconds": LEASE_SECONDS, "unit_records": UNIT} | options
    job = Job(bootstrap=kafka.bootstrap, group=topic, store="", path=str(path / "handled"), **given)  # type: ignore[arg-type]
    with ExitStack() as stack:
        yield Fire(stack, kafka, redis, job)


def check(fire: Fire) -> None:
    """Nothing is missing, and whatever was handled twice was another attempt, which the events tell."""
    handled = read_lines(fire.path)
    print(f"{len(handled)} units handled, {len(repeated(handled))} of them again, of {PARTITIONS * fire.each} records")
    print(", ".join(fire.deeds))
    assert missing(handled, fire.ends) == []
    assert [entry for entry in handled if not entry.is_whole] == []
    events = [event for event in read_events(fire.path) if event["event"] == "UnitReclaimed"]
    taken_away = {(event["partition"], event["start"], event["attempt"]) for event in events}
    unexplained = []
    snapshot = fire.store.look()
    has_gone_back = any(event["event"] == "StoreWentBack" for event in read_events(fire.path))
    for attempts in repeated(handled):
        if has_gone_back:  # a store that forgot has its units planned again, from their first attempt on
            continue
        assert len({entry.attempt for entry in attempts}) == len(attempts), attempts
        assert sum(entry.ending == "done" for entry in attempts) <= 1, attempts
        assert [entry.attempt for entry in attempts] == sorted(entry.attempt for entry in attempts), attempts
        before = [(entry.range.partition, entry.range.start, entry.attempt) for entry in attempts[:-1]]
        unexplained += [key for key in before if key not in taken_away]
    # Whoever takes a unit away may be killed before that is written.
    assert len(unexplained) <= sum(deed.startswith("kill") for deed in fire.deeds), unexplained
    # Units whose taking was never answered go back from their own node, which emits the same event.
    assert len(taken_away) <= snapshot.counts.reclaimed + snapshot.counts.given_back
    assert [state for state in snapshot.partitions if state.waiting or state.out or state.failed] == []
    assert fire.store.failures() == []


def kill_a_leader(fire: Fire, client: Cluster) -> Callable[[], None]:
    """A broker that leads some of it dies, and comes back when others lead."""

    def deed() -> None:
        victim = leaders(client, fire.topic)[0]
        fire.kafka.kill(victim)
        eventually(lambda: victim not in leaders(client, fire.topic).values(), "others lead", seconds=PATIENCE)
        fire.kafka.restart(victim)
        fire.deeds.append("kill broker")

    return deed


@pytest.fixture
def broken(kafka: LocalCluster) -> Iterator[LocalCluster]:
    """The brokers of the run, mended when the test ends."""
    try:
        yield kafka
    finally:
        mend(kafka)


def burn(
    kafka: LocalCluster, client: Cluster, redis: RedisServer, path: Path, *, ordered: bool, records: int, seconds: float
) -> None:
    """A whole run. The workers are slow enough for faults to meet them at work."""
    with on_fire(kafka, client, redis, path, ordered=ordered, work_seconds=0.2) as fire:
        # Where order is kept, the time of a partition without leader is lost to all of its units: once is enough.
        also = () if ordered and seconds < 60 else (kill_a_leader(fire, client),)
        fire.run(records=records, seconds=seconds, also=also)
        check(fire)
        if ordered:
            assert out_of_order(read_lines(fire.path)) == []


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_nothing_is_lost_and_nothing_is_repeated_without_a_reason(
    broken: LocalCluster, client: Cluster, durable_redis: RedisServer, tmp_path: Path, ordered: bool
) -> None:
    """Each kind of fault once."""
    burn(broken, client, durable_redis, tmp_path, ordered=ordered, records=100_000, seconds=0)


@pytest.mark.long
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_nothing_is_lost_in_minutes_of_faults(
    broken: LocalCluster, client: Cluster, durable_redis: RedisServer, tmp_path: Path, ordered: bool
) -> None:
    burn(broken, client, durable_redis, tmp_path, ordered=ordered, records=5_000_000, seconds=180)


def test_a_worker_frozen_between_its_work_and_its_word_is_refused(
    kafka: LocalCluster, client: Cluster, durable_redis: RedisServer, tmp_path: Path
) -> None:
    topic, path = f"frozen-{uuid.uuid4().hex[:6]}", tmp_path / "handled"
    Admin(client).create_topic(topic, partitions=1, replicas=1)
    write(kafka.bootstrap, topic, 100)
    url = f"redis://127.0.0.1:{durable_redis.port}"
    job = Job(bootstrap=kafka.bootstrap, group=topic, store=url, path=str(path), topics=(topic,), freezes=True)
    store, first, second = open_store(url, topic), Worker(job), None
    try:
        eventually(lambda: first.is_frozen, "it has handled its unit", seconds=PATIENCE)
        second = Worker(Job(**{name: getattr(job, name) for name in Job.__slots__} | {"freezes": False}))
        settled(store.look, {(topic, 0): 100}, seconds=PATIENCE)
        first.signal(signal.SIGCONT)
        eventually(
            lambda: len([entry for entry in read_lines(path) if entry.ending]) == 2, "both have ended", seconds=PATIENCE
        )
        late, early = sorted(read_lines(path), key=lambda entry: entry.attempt)
        assert (late.pid, late.attempt, late.ending) == (first.pid, 1, "lost")
        assert (early.pid, early.attempt, early.ending) == (second.pid, 2, "done")
        assert early.fence > late.fence
        assert store.look().counts[:2] == (1, 100)
        assert store.look().counts.refused >= 1
        assert [first.stop(), second.stop()] == [0, 0]
    finally:
        for worker in (first, second):
            if worker is not None and worker.is_alive:
                worker.kill()
        store.close()


def test_a_redis_that_forgets_loses_nothing_and_repeats_no_number(
    kafka: LocalCluster, client: Cluster, tmp_path: Path
) -> None:
    """Killed long after its last snapshot: its numbers, plans and what was done go back."""
    topic, path = f"forgets-{uuid.uuid4().hex[:6]}", tmp_path / "handled"
    Admin(client).create_topic(topic, partitions=2, replicas=1)
    write(kafka.bootstrap, topic, 20_000, partitions=2)
    with RedisServer(tmp_path / "redis") as redis, ExitStack() as stack:
        url = f"redis://127.0.0.1:{redis.port}"
        store = open_store(url, topic)
        store.found(Charter(lease_seconds=LEASE_SECONDS, max_attempts=20))
        stack.callback(store.close)
        job = Job(
            bootstrap=kafka.bootstrap,
            group=topic,
            store=url,
            path=str(path),
            topics=(topic,),
            unit_records=200,
            backlog=20,
            work_seconds=0.05,
        )
        workers = [Worker(job) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.kill)
        eventually(lambda: store.look().counts.done >= 10, "some is done", seconds=PATIENCE)
        redis.ask("SAVE")
        saved = store.look()
        eventually(lambda: store.look().counts.done >= saved.counts.done + 40, "more is done", seconds=PATIENCE)
        number = store.look().number
        redis.kill()
        redis.start()
        settled(store.look, {(topic, 0): 20_000, (topic, 1): 20_000}, seconds=PATIENCE)
        handled = read_lines(path)
        assert missing(handled, {(topic, 0): 20_000, (topic, 1): 20_000}) == []
        assert any(event["event"] == "StoreWentBack" for event in read_events(path))
        assert store.look().number > number
        assert [worker.stop() for worker in workers] == [0, 0]
        fences = [entry.fence for entry in handled]
        assert len({*fences}) == len(fences)
