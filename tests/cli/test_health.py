"""`ottla health` and `ottla health probe` as commands."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster

from .commands import SECONDS, program, run


@pytest.fixture(scope="module")
def nowhere() -> str:
    """An address where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.broker
def test_a_finding_has_its_reason_and_the_command_to_type(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("health-cli", assignments=[[1, 2]], settings={"min.insync.replicas": "3"})
    arguments = ("--bootstrap", kafka.bootstrap)
    result = run("health", *arguments)
    assert result.exit_code == 3, result.output
    lines = result.stdout.splitlines()
    assert re.match(r"cluster \S+ is degraded \(3 brokers, [0-9,]+ partitions?\): [0-9]+ warning", lines[0])
    [at] = [number for number, line in enumerate(lines) if "min.insync.replicas above" in line]
    assert lines[at].startswith("  warning: 1 topic (health-cli) has")
    assert lines[at + 1] == f"    ottla topics describe health-cli --bootstrap {kafka.bootstrap}"
    content = json.loads(run("health", "--json", *arguments).stdout)
    assert (content["state"], content["complete"]) == ("degraded", True)
    [finding] = [each for each in content["findings"] if each["check"] == "min-isr-above-replicas"]
    assert finding["affects"] == ["health-cli"]
    ignored = run("health", "--ignore", "min-isr-above-replicas", *arguments)
    assert "min.insync.replicas above" not in ignored.stdout
    assert run("health", "--accept-warnings", *arguments).exit_code == 0
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics("health-cli")
    assert "min.insync.replicas above" not in run("health", *arguments).stdout


def test_a_cluster_that_is_away_is_unhealthy_and_is_waited_for_no_longer_than_asked(nowhere: str) -> None:
    result = run("health", "--bootstrap", nowhere, "--timeout", "1s")
    assert result.exit_code == 3
    assert result.stdout.startswith("the cluster is unhealthy: 1 critical\n  critical: no broker can be reached: ")
    assert nowhere in result.stdout
    waited = run(
        "health", "--exit-when-healthy", "--for", "1s", "--every", "200ms", "--bootstrap", nowhere, "--timeout", "300ms"
    )
    assert waited.exit_code == 3
    probing = run("health", "--probe", "--json", "--bootstrap", nowhere, "--timeout", "1s")
    assert (probing.exit_code, json.loads(probing.stdout)["state"]) == (3, "unhealthy")
    failed = run("health", "probe", "--for", "1s", "--bootstrap", nowhere, "--timeout", "1s")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error: no broker reachable")


def test_the_command_to_type_asks_the_cluster_that_was_asked(nowhere: str, tmp_path: Path) -> None:
    def command(*arguments: str, **variables: str) -> object:
        result = run(
            "health", "--json", "--timeout", "1s", *arguments, env={"XDG_CONFIG_HOME": str(tmp_path), **variables}
        )
        [finding] = json.loads(result.stdout)["findings"]
        return finding["command"]

    (tmp_path / "ottla").mkdir()
    (tmp_path / "ottla" / "config.toml").write_text(f'[profiles.far]\nbootstrap = "{nowhere}"\n')
    again = "ottla health --exit-when-healthy"
    assert command("--bootstrap", nowhere) == f"{again} --bootstrap {nowhere}"
    assert command("--profile", "far") == f"{again} --profile far"
    assert command(OTTLA_BOOTSTRAP=nowhere) == again
    login = ("--tls", "--username", "app")
    assert command("--bootstrap", nowhere, *login, OTTLA_PASSWORD="secret") == (
        f"{again} --bootstrap {nowhere} --tls --username app"
    )


@pytest.mark.broker
def test_commands_in_errors_ask_the_cluster_that_was_asked(kafka: LocalCluster) -> None:
    arguments = ("--bootstrap", kafka.bootstrap)
    assert f"'ottla groups list --bootstrap {kafka.bootstrap}' shows all" in run("lag", "not-there", *arguments).stderr
    here = run("lag", "not-there", env={"OTTLA_BOOTSTRAP": kafka.bootstrap})
    assert "'ottla groups list' shows all" in here.stderr


@pytest.mark.broker
def test_ctrl_c_while_a_probe_begins_is_no_traceback(kafka: LocalCluster) -> None:
    with program("health", "--probe", "--bootstrap", kafka.bootstrap) as started:

        def has_begun() -> bool:
            with Admin(kafka.bootstrap) as admin:
                return "ottla-probe" in admin.topic_names()

        eventually(has_begun)
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=SECONDS)
    # On a busy machine the signal may come when it has a verdict already, or when Python itself is ending.
    assert started.returncode in (130, 0, 3, -signal.SIGINT)
    assert b"Traceback" not in errors
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics("ottla-probe")


@pytest.mark.broker
def test_a_watch_shows_a_verdict_each_time_until_time_is_up(kafka: LocalCluster) -> None:
    result = run("health", "--watch", "--json", "--every", "300ms", "--for", "1s", "--bootstrap", kafka.bootstrap)
    verdicts = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(verdicts) >= 2
    assert len({each["cluster_id"] for each in verdicts}) == 1


@pytest.mark.broker
def test_a_probe_reports_every_broker(kafka: LocalCluster) -> None:
    probe = ("health", "probe", "--every", "500ms", "--for", "2s", "--topic", "health-cli-probe")
    result = run(*probe, "--json", "--remove", "--bootstrap", kafka.bootstrap)
    rows = json.loads(result.stdout)
    assert [row["broker"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["received"] > 0
        assert (row["lost"], row["duplicates"], row["corrupt"]) == (0, 0, 0)
        assert 0 < row["produce_seconds"]["p50"] <= row["produce_seconds"]["p99"] <= row["round_trip_seconds"]["max"]
    assert result.exit_code == (0 if not any(row["failed"] for row in rows) else 3)
    with Admin(kafka.bootstrap) as admin:
        assert "health-cli-probe" not in admin.topic_names()


@pytest.mark.broker
def test_a_probe_serves_metrics_and_the_verdict_until_ctrl_c(kafka: LocalCluster) -> None:
    arguments = ("--serve", "0", "--look-every", "500ms", "--topic", "health-cli-served", "--remove")
    with program("health", "probe", *arguments, "--bootstrap", kafka.bootstrap) as started:
        assert started.stderr is not None
        line = started.stderr.readline().decode()
        found = re.search(r"(http://127\.0\.0\.1:[0-9]+)/health", line)
        assert found, line

        def page(path: str) -> str:
            with urllib.request.urlopen(found[1] + path, timeout=10) as answer:
                return str(answer.read().decode())

        def is_complete() -> bool:
            text = page("/metrics")
            return "kafka_brokers 3" in text and 'messages_received_total{broker="3"' in text

        eventually(is_complete)
        started.send_signal(signal.SIGINT)
        output, _ = started.communicate(timeout=SECONDS)
        assert started.returncode == 130
        assert output.decode().splitlines()[0].split()[:3] == ["broker", "state", "available"]


@pytest.mark.broker
def test_a_port_in_use_is_one_message_and_nothing_is_created(kafka: LocalCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        probe = ("health", "probe", "--serve", str(port), "--topic", "health-cli-refused", "--for", "1s")
        result = run(*probe, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 2
    assert f"error: cannot listen on 127.0.0.1:{port}: another program listens there" in result.stderr
    with Admin(kafka.bootstrap) as admin:
        assert "health-cli-refused" not in admin.topic_names()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--watch", "--exit-when-healthy"), "--watch and --exit-when-healthy are mutually exclusive"),
        (("--for", "5s"), "--for needs --watch or --exit-when-healthy"),
        (("--ignore", "everything"), "there is no check 'everything': there are at-min-isr"),
        (("--every", "fast"), "--every: 'fast' is not a duration"),
        (("proeb",), "no such command 'proeb': did you mean 'ottla health probe'?"),
        (("probe", "--serve", "web"), "--serve: 'web' is not a port: write PORT or HOST:PORT"),
        (("probe", "--serve", "99999"), "--serve: '99999' is not a port"),
        (("probe", "--topic", "a b"), "--topic: "),
    ],
)
def test_wrong_uses_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    where = () if arguments == ("proeb",) else ("--bootstrap", "127.0.0.1:1")
    result = run("health", *arguments, *where)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
