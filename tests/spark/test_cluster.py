"""Source, sink and replay run unchanged on a standalone cluster: the same program, another master."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.spark.archive_kills import family
from tests.spark.standalone import CONF, SECONDS, Standalone

import ottla
from ottla.admin import Admin
from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]
COUNT, MORE = 3000, 500
_PROJECT = Path(__file__).parents[2]


@contextmanager
def _program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(_PROJECT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=_PROJECT,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield process
    finally:
        family(process.pid, kill=True)
        process.wait()


def _run(*arguments: str) -> str:
    with _program(*arguments) as process:
        output, _ = process.communicate(timeout=2 * SECONDS)
        assert process.returncode == 0, output[-4000:]
    return output


@pytest.mark.parametrize("master", ["local[2]", "standalone"])
def test_source_sink_and_replay_give_the_same_on_any_master(kafka: LocalCluster, tmp_path: Path, master: str) -> None:
    names = {use: f"cluster-{master.partition('[')[0]}-{use}" for use in ("source", "written", "streamed", "replayed")}
    with Admin(kafka.bootstrap) as admin:
        for name in names.values():
            admin.create_topic(name, partitions=3)
    with ottla.Producer(kafka.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(names["source"], b"%d" % number, key=b"%d" % (number % 97))
    archive = tmp_path / "archive"
    _run(
        "ottla.cli",
        "archive",
        names["source"],
        "--to",
        str(archive),
        "--until",
        "latest",
        "--bootstrap",
        kafka.bootstrap,
    )
    with ottla.Reader(kafka.bootstrap) as reader:
        archived = reader.fingerprint(names["source"])
    cluster: Any = Standalone(tmp_path).running() if master == "standalone" else nullcontext()
    with cluster as standalone:
        settings = {
            **names,
            "bootstrap": kafka.bootstrap,
            "more": MORE,
            "archive": str(archive),
            "checkpoint": str(tmp_path / "checkpoint"),
            "master": standalone.master if standalone else master,
            "conf": {"spark.ui.enabled": "false", "spark.local.dir": str(tmp_path), **(CONF if standalone else {})},
        }
        output = _run("tests.spark.cluster_play", json.dumps(settings))
    results = json.loads(output.splitlines()[-1])
    assert (results["first"], results["later"], results["replayed"]) == (COUNT, COUNT + MORE, 3)
    assert 0 < results["filtered"] < COUNT
    assert results["machines"] == (3 if master == "standalone" else 1)
    with ottla.Reader(kafka.bootstrap, isolation="read_committed") as reader:
        whole = reader.fingerprint(names["source"])
        assert whole.count == COUNT + MORE
        assert reader.fingerprint(names["written"]) == whole
        assert reader.fingerprint(names["streamed"]) == whole
        assert reader.fingerprint(names["replayed"]) == archived
