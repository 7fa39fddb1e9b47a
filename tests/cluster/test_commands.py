"""The commands as a user runs them, each in its own process; also when they are killed halfway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.cluster import Condition, LocalCluster
from ottla.cluster.process import strays, wait_until

from .conftest import processes_of

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("quick_brokers_of_children")]

_OTTLA = [sys.executable, "-c", "from ottla.cli import main; main()", "cluster"]


def _ottla(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*_OTTLA, *arguments, "--dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _interrupted(folder: Path, number: signal.Signals, when: Callable[[], bool]) -> int:
    """Start a cluster with the command, send it a signal at some moment, and return its exit code."""
    command = [*_OTTLA, "up", "--dir", str(folder), "--redis"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        assert wait_until(when, timeout=60)
        os.kill(up.pid, number)
        return up.wait(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_interrupted_stops_what_it_started(folder: Path, number: signal.Signals) -> None:
    assert _interrupted(folder, number, lambda: len(processes_of(folder)) >= 2) != 0
    assert processes_of(folder) == []
    assert LocalCluster(dir=folder).status().condition is Condition.ABSENT


def test_stale_state_of_a_killed_up_is_reported_cleaned_and_replaced_by_the_next_one(folder: Path) -> None:
    def broker_started() -> bool:
        return any("kafka.Kafka" in command for command in processes_of(folder))

    assert _interrupted(folder, signal.SIGKILL, broker_started) == -signal.SIGKILL
    status = _ottla(folder, "status")
    assert status.returncode == 1
    assert "its start was interrupted" in status.stdout
    leftovers = {process.pid for process in strays(folder / "default")}
    assert leftovers

    up = _ottla(folder, "up", "--topic", "clicks:3", "--setting", "log.retention.hours=1")
    assert up.returncode == 0, up.stderr
    assert "cluster 'default' is running, Kafka 4.3.1" in up.stdout
    assert "removing the leftovers of a dead program" in up.stderr
    assert not leftovers & {process.pid for process in strays(folder / "default")}
    assert "log.retention.hours=1\n" in (folder / "default" / "broker-1" / "server.properties").read_text()
    with Admin(LocalCluster(dir=folder).bootstrap) as admin:
        assert [len(topic.partitions) for topic in admin.describe_topics(["clicks"])] == [3]

    assert json.loads(_ottla(folder, "kill", "1", "--json").stdout) == {"brokers": [1], "state": "killed"}
    assert LocalCluster(dir=folder).status().condition is Condition.STALE
    assert _ottla(folder, "restart", "1").stdout == "broker 1: back\n"
    assert LocalCluster(dir=folder).status().condition is Condition.RUNNING

    began = time.monotonic()
    assert "pass --yes to confirm" in _ottla(folder, "down").stderr
    assert _ottla(folder, "down", "--dry-run").stdout.startswith("would stop and delete 'default' (")
    would = json.loads(_ottla(folder, "down", "--dry-run", "--json").stdout)
    assert would == {"stopped": False, "data_kept": False, "clusters": [{"name": "default", "existed": True}]}
    assert _ottla(folder, "down", "--yes").stdout == "cluster 'default' and its data are deleted\n"
    assert time.monotonic() - began < 15
    assert processes_of(folder) == []
    assert not (folder / "default").exists()
