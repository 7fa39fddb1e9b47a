"""A Redis whose clock jumps takes nothing away from anybody: leases follow no clock of the store."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from ottla.engines.fleet.held_units import Ending, HeldUnits
from ottla.engines.fleet.steward import Steward
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter, Move
from ottla.model import OffsetRange

from .servers import RedisServer


def _library() -> str | None:
    """The one of the package libfaketime, else one that is installed."""
    spec = importlib.util.find_spec("libfaketime")
    package = Path(spec.origin).parent if spec is not None and spec.origin else None
    places = [
        *([] if package is None else package.glob("vendor/libfaketime/src/libfaketime.so.1")),
        *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    ]
    return str(places[0]) if places else None


LIBRARY = _library()
_LEASE = 1.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is written here is added to the time of programs that are started then."""
    if LIBRARY is None:
        pytest.skip("there is no libfaketime for this machine (Debian, Ubuntu: apt install libfaketime)")
    file = tmp_path / "clock"
    file.write_text("+0")
    settings = {"LD_PRELOAD": LIBRARY, "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
    for name, value in {**settings, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}.items():
        monkeypatch.setenv(name, value)
    return file


@pytest.fixture
def jumpy_redis(clock: Path, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def test_leases_outlive_a_clock_that_jumps(jumpy_redis: RedisServer, clock: Path, group: str) -> None:
    charter = Charter(lease_seconds=_LEASE)
    unit = OffsetRange("clicks", 0, 0, 10)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(open_store(f"redis://127.0.0.1:{jumpy_redis.port}", group))) for _ in range(2)
        ]
        holdings = [HeldUnits(store, f"node-{number}") for number, store in enumerate(stores)]
        stores[0].found(charter)
        for number, (store, own) in enumerate(zip(stores, holdings, strict=True)):
            steward = Steward(
                store, own, None, charter, node=f"node-{number}", report=dict, tell=lambda event: print(event)
            )
            steward.start()
            stack.callback(steward.stop)
        lease = stores[0].lead("planner")
        assert lease is not None
        assert stores[0].plan(lease, [Move(unit.topic_partition, None, 10, (unit,))])
        (held,) = holdings[0].take(1)
        before = int(jumpy_redis.ask("TIME")[0])
        for jump in ("+660", "-3600", "+86400"):
            clock.write_text(jump)
            time.sleep(1.5 * _LEASE)  # for as long as somebody would need to notice that a lease stands still
        assert int(jumpy_redis.ask("TIME")[0]) - before > 80_000, "the clock has jumped"
        assert stores[1].look().counts.reclaimed == 0
        assert holdings[0].finish(held, 10) is Ending.DONE
