"""What is pictured: command lines, when each of them shows enough, and what goes on in the cluster meanwhile.

Scenes run in their order, on clusters that `World` starts; each may rely on what was made for those before it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_EVENTS = 6_000_000
SHOWN_PORTS = {"959": "909", "969": "919"}
"""Brokers listen where others rarely do; pictures show the usual ports."""
_LONG = "1h"
_HANDLER = """\
import time


def resize(batch):
    time.sleep(0.1)
"""
_CONFIG = """\
default = "local"

[profiles.local]
bootstrap = "localhost:9592"

[profiles.hub]
bootstrap = ["hub-1.example:9093", "hub-2.example:9093"]
tls = true
username = "reporting"
password_env = "HUB_PASSWORD"

[profiles.cloud]
bootstrap = "cloud.example:9092"
tls = true
oauth_token_file = "token"
"""


class Scene(NamedTuple):
    """A command line, and the moment of its picture."""

    name: str
    title: str
    command: str
    is_enough: Callable[[str], bool]
    before: Sequence[str] = ()
    """Commands that run first."""
    beside: Sequence[str] = ()
    """Commands that run from now on, until all scenes are over."""
    ready: Sequence[str] = ()
    """Commands that run after that."""


def _ended(text: str) -> bool:
    return False


def _percent(least: int) -> Callable[[str], bool]:
    def is_enough(text: str) -> bool:
        found = re.findall(r"(\d+)%", text)
        return bool(found) and int(found[-1]) >= least

    return is_enough


def _after(seconds: float) -> Callable[[str], bool]:
    began: list[float] = []

    def is_enough(text: str) -> bool:
        if text and not began:
            began.append(time.monotonic())
        return bool(began) and time.monotonic() - began[0] >= seconds

    return is_enough


def _page_views(page: str) -> str:
    record = '{\\"user\\": \\"$user\\", \\"page\\": \\"' + page + '\\"}'
    return f'for user in ann bob eve; do echo "$user:{record}"; done | ottla produce users --key-separator :'


SCENES = (
    Scene("cluster-status", "The brokers of a local cluster", "ottla cluster status", _ended),
    Scene("profiles", "Clusters by their names", "ottla profiles", _ended),
    Scene(
        "produce",
        "A file on its way into a topic",
        "ottla produce orders events.txt",
        _percent(60),
        before=[f"seq {_EVENTS} > events.txt"],
    ),
    Scene("topics-list", "All topics", "ottla topics list --long", _ended),
    Scene("topics-describe", "One topic", "ottla topics describe orders", _ended),
    Scene(
        "consume",
        "Records, from the beginning",
        "ottla consume users --max-records 6 --key-separator ' '",
        _ended,
        before=[_page_views("/cart"), _page_views("/pay")],
    ),
    Scene(
        "lag",
        "Groups, and how far they are behind",
        "ottla lag --for 12s",
        _ended,
        before=[
            "ottla consume orders --group reports --max-records 400000 >/dev/null",
            "ottla consume orders --group billing --until latest >/dev/null || true",
        ],
        beside=[
            f"ottla perf produce clicks --existing --rate 2000 --size 500B --duration {_LONG} --warmup 0s >/dev/null",
            "ottla consume clicks --group billing >/dev/null",
        ],
    ),
    Scene(
        "work-status",
        "The nodes and topics of a fleet",
        "ottla work status --group thumbnails --watch",
        _after(14),
        beside=["ottla work run --group thumbnails --handler workers:resize --topic clicks --threads 2"] * 2,
        ready=["until ottla work status --group thumbnails; do sleep 1; done"],
    ),
    Scene(
        "mirror-status",
        "A mirror to another cluster",
        "ottla mirror status --from localhost:9592 --to localhost:9692 --name hub --watch",
        _after(10),
        before=["ottla mirror users --from localhost:9592 --to localhost:9692 --name users"],
        beside=["ottla mirror clicks --from localhost:9592 --to localhost:9692 --name hub --follow"],
        ready=["until ottla mirror status --to localhost:9692 --name hub | grep running; do sleep 1; done"],
    ),
    Scene("archive", "A topic on its way into an archive", "ottla archive orders --to archive", _percent(30)),
    Scene(
        "audit-compare",
        "Two clusters, compared by what is in their topics",
        "ottla audit compare users --data edge=localhost:9592 --data hub=localhost:9692 --bucket 10s --delay 0s --all",
        _ended,
        before=[_page_views("/out"), "sleep 11"],
    ),
    Scene(
        "perf",
        "A performance test",
        "ottla perf produce perf-test --records 300000 --size 1kB --partitions 3 --beside confluent",
        _ended,
    ),
    Scene(
        "reassign-run",
        "Replicas that move, throttled",
        "ottla topics replicas orders 2 --throttle 2MB/s --yes",
        _percent(40),
    ),
    Scene(
        "reassign-status",
        "What moves in a cluster",
        "ottla reassign status",
        _ended,
        beside=["ottla topics replicas orders 3 --throttle 500kB/s --yes"],
        ready=["until ottla reassign status 2>/dev/null | grep orders; do sleep 1; done"],
    ),
    Scene(
        "health",
        "What is wrong with a cluster",
        "ottla health",
        _ended,
        before=["ottla cluster stop 3"],
    ),
    Scene("topics-describe-down", "A topic while a broker is down", "ottla topics describe clicks", _ended),
)


class World:
    """The clusters, and the commands that run beside the scenes. Leaving the block ends all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "demo"
        self.folder.mkdir()
        (self.folder / "workers.py").write_text(_HANDLER)
        (self.folder / "token").write_text("")
        config = self.folder / "config.toml"
        config.write_text(_CONFIG)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OTTLA_DIR": str(folder),
            "OTTLA_CONFIG": str(config),
            "PYTHONPATH": str(self.folder),
        }
        self._beside: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> World:
        topics = "--topic clicks:6:3 --topic orders:3:1 --topic users:3:3"
        self.run(f"ottla cluster up --port 9592 --brokers 3 --redis {topics}")
        self.run("ottla cluster up --name hub --port 9692")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._beside:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in ("default", "hub"):
            self.run(f"ottla cluster down --name {name} --yes")

    def run(self, command: str) -> None:
        """Run a command to its end."""
        subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, check=True, timeout=300)

    def begin(self, command: str) -> None:
        """Start a command that goes on."""
        self._beside.append(
            subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, start_new_session=True)
        )
