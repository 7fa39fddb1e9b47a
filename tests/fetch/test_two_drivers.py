"""A program and a thread that take turns at fetching, with interrupts: every piece comes once, in order, and soon."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest
from tests.fetch.logs import fill
from tests.fetch.watching import QUICK, TIMES
from tests.interrupting import CtrlC
from tests.waiting import eventually

from ottla.events import Events
from ottla.fetch import fetcher as fetcher_module
from ottla.fetch.cursor import Cursor, Failed
from ottla.fetch.fetcher import Fetcher
from ottla.fetch.options import Fetching, FetchPolicy, OnLost
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster, Deadline
from ottla.testing import FakeKafka

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
FETCHING = Fetching(memory_bytes=1 << 17, request_bytes=1 << 11, max_wait=0.05)
POLICY = FetchPolicy(FETCHING, Isolation.READ_UNCOMMITTED, OnLost.ERROR, float("inf"))
FILES = tuple(
    f"ottla/{name}.py"
    for name in (
        "fetch/cursor",
        "fetch/fetcher",
        "fetch/leaders",
        "fetch/session",
        "fetch/buffer",
        "fetch/recovery",
        "net/wakeup",
        "net/connection",
        "net/background",
        "net/frames",
        "net/pipeline",
        "net/links",
        "net/lookups",
        "net/loop",
        "net/outbox",
        "net/pending",
        "net/traffic",
        "net/refresh",
    )
)
COMMON = ("write", "read", "read", "interrupt", "interrupt", "away")


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2, topics={"t": 3}, auto_create=None) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _restless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch threads between any two instructions, and count responses of 1 kB as large."""
    monkeypatch.setattr(fetcher_module, "_BULK_BYTES", 1 << 10)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class World:
    """A fetcher, and a program that reads, is away, and is interrupted."""

    def __init__(self, kafka: FakeKafka, cluster: Cluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kafka = kafka
        self.fetcher = Fetcher(cluster, POLICY, channel=f"driven-{seed}", events=Events())
        self.topic_id = cluster.topic("t").id
        self.cursors = {tp: Cursor(tp, 0, topic_id=self.topic_id) for tp in PARTITIONS}
        self.fetcher.add(self.cursors.values())
        self.interrupter = CtrlC(FILES)
        self.most = 1
        self.written = dict.fromkeys(PARTITIONS, 0)
        self.reached = dict.fromkeys(PARTITIONS, 0)
        self.interruptions = 0

    def write(self) -> None:
        tp, batches = self.chance.choice(PARTITIONS), self.chance.choice([1, 1, 5, 40])
        fill(self.kafka, batches, at=tp)
        self.written[tp] += batches * 10

    def read(self, seconds: float, *, is_interrupted: bool = False) -> None:
        place = self.chance.randint(1, self.most) if is_interrupted else 0
        _, was_interrupted = self.interrupter.ends(lambda: self.fetcher.wait(Deadline.after(seconds)), place)
        self.interruptions += was_interrupted
        self.most = max(self.most, min(2 * self.interrupter.seen, 1500))
        item = self.fetcher.take()
        if item is None:
            return
        assert not isinstance(item, Failed), item
        assert item.start == self.reached[item.cursor.tp], "a piece was passed over, or comes again"
        self.reached[item.cursor.tp] = item.next_offset
        self.fetcher.buffer.used_up(item)

    def begin_again(self, tp: TopicPartition) -> None:
        self.fetcher.remove([self.cursors[tp]])
        self.cursors[tp] = Cursor(tp, self.reached[tp], topic_id=self.topic_id)
        self.fetcher.add([self.cursors[tp]])

    def step(self) -> None:
        match self.chance.choice([*COMMON, *COMMON, "move", "break", "again"]):
            case "write":
                self.write()
            case "read":
                self.read(self.chance.choice([0.0, 0.001, 0.02]))
            case "interrupt":
                self.read(0.02, is_interrupted=True)
            case "away":
                time.sleep(self.chance.choice([0.0, 0.0005, 0.004]))
            case "again":
                self.begin_again(self.chance.choice(PARTITIONS))
            case "move":
                self.kafka.move_leader("t", self.chance.randrange(3), to=self.chance.choice([1, 2]))
            case "break" if self.chance.random() < 0.2:
                broker = self.chance.choice([1, 2])
                self.kafka.down(broker)
                self.kafka.up(broker)

    def is_through(self) -> bool:
        """Whether everything has come, after one more read."""
        self.read(0.2)
        return self.reached == self.written


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 30))])
def test_every_piece_comes_once_and_in_order_whatever_is_interrupted(kafka: FakeKafka, seed: int) -> None:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES, chance=random.Random(1)) as cluster:
        world = World(kafka, cluster, seed)
        world.fetcher.start()
        try:
            steps = 0
            while steps < 150 or world.interruptions < 15:
                steps += 1
                world.step()
            eventually(world.is_through, lambda: f"{world.reached} of {world.written}")
            # Neither memory nor a driver is left behind that would keep it from continuing.
            world.write()
            eventually(world.fetcher.buffer.is_ready, "the background thread fetches while the program is away")
            eventually(world.is_through)
            reserved = len(list(world.fetcher._loop.links)) * FETCHING.request_bytes
            eventually(lambda: world.fetcher.buffer.used_bytes <= reserved, "memory was lost")
        finally:
            world.fetcher.stop()
