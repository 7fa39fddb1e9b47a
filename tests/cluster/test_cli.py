"""The command line: what it prints, where it connects, how it exits."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ottla import __version__
from ottla.cli import cli
from ottla.cli.cluster.view import JarProgress
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cluster import LocalCluster
from ottla.cluster.creation import ClusterRequest
from ottla.cluster.state import ClusterFolder
from ottla.errors import BrokerError, ConfigError


@click.command()
@bootstrap_option
def where(bootstrap: str) -> None:
    """Print where it would connect."""
    click.echo(bootstrap)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OTTLA_BOOTSTRAP", "OTTLA_CACHE", "OTTLA_MAVEN_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTTLA_DIR", str(tmp_path))


def _run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, env=env)


def test_the_version_is_printed() -> None:
    assert _run("--version").output == f"ottla, version {__version__}\n"


def test_the_overview_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from ottla.cli import cli;"
        "text = CliRunner().invoke(cli, ['--help']).output; assert 'cluster' in text, text;"
        "print([m for m in ('numba', 'pyarrow', 'psutil', 'ottla.cluster', 'ottla.net') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "command", ["up", "down", "status", "list", "add", "kill", "stop", "restart", "freeze", "thaw", "logs"]
)
def test_every_command_has_help_with_examples(command: str) -> None:
    result = _run("cluster", command, "--help")
    assert result.exit_code == 0
    assert f"ottla cluster {command}" in result.output.split("Example", 1)[1]


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "psutil" else real(name))
    result = _run("cluster", "status")
    assert result.exit_code == 1
    assert result.stderr == "error: 'ottla cluster status' needs extra packages: pip install 'ottla[cluster]'\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["cluster", "up", "--topic", "a:0"],
        ["cluster", "up", "--brokers", "0"],
        ["cluster", "up", "--setting", "novalue"],
        ["cluster", "up", "--kafka-version", "0.8"],
        ["cluster", "up", "--name", "../x"],
        ["cluster", "kill"],
        ["cluster", "nonsense"],
        ["nonsense"],
    ],
)
def test_wrong_use_ends_with_two(arguments: list[str]) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert "rror" in result.stderr


def test_a_failure_is_one_text_without_traceback_and_ends_with_one() -> None:
    result = _run("cluster", "kill", "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cluster 'default' does not exist")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("error", "code"), [(BrokerError(3, "asking"), 1), (ConfigError("wrong"), 2)])
def test_every_error_of_ottla_becomes_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(LocalCluster, "all", _failing(error))
    result = _run("cluster", "list")
    assert result.exit_code == code
    assert result.stderr == f"error: {error}\n"


def test_an_error_of_the_system_is_one_text_and_a_reader_that_left_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, expected in ((errno.EACCES, "error: [Errno 13] Permission denied: 'x'\n"), (errno.EPIPE, "")):
        monkeypatch.setattr(LocalCluster, "all", _failing(OSError(number, os.strerror(number), "x")))
        result = _run("cluster", "list")
        assert result.exit_code == 1
        assert result.stderr == expected


def _failing(error: Exception) -> Callable[[object], None]:
    def fail(directory: object) -> None:
        raise error

    return fail


def test_an_absent_cluster_is_shown_as_such() -> None:
    result = _run("cluster", "status", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["condition"] == "absent"
    assert _run("cluster", "status").stdout == "cluster 'default' is absent\n'ottla cluster up' starts one\n"
    assert _run("cluster", "list").stdout == "no cluster: 'ottla cluster up' starts one\n"
    assert _run("cluster", "down").stdout == "no cluster 'default'\n"
    assert _run("cluster", "down", "--all").stdout == "no cluster\n"


def test_a_download_prints_lines_if_stderr_is_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with JarProgress() as progress:
        for done in range(0, 50_000_001, 1_000_000):
            progress(done, 50_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "downloading Kafka's jars: 50 of 50 MB"
    assert len(lines) < 5


def test_a_bootstrap_address_is_taken_from_the_option_then_the_environment() -> None:
    explicit = CliRunner().invoke(where, ["--bootstrap", "a:1,b:2"], env={"OTTLA_BOOTSTRAP": "c:3"})
    assert (explicit.stdout, explicit.stderr) == ("a:1,b:2\n", "")
    named = CliRunner().invoke(where, [], env={"OTTLA_BOOTSTRAP": "c:3"})
    assert (named.stdout, named.stderr) == ("c:3\n", "using OTTLA_BOOTSTRAP=c:3\n")


def test_a_wrong_bootstrap_address_is_refused() -> None:
    result = CliRunner().invoke(where, ["--bootstrap", "a:b"])
    assert result.exit_code == 2
    assert "'a:b' is not HOST:PORT" in result.stderr


def test_without_any_broker_the_error_says_how_to_get_one() -> None:
    result = CliRunner().invoke(where, [])
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: no brokers: pass --bootstrap HOST:PORT or --profile NAME, set OTTLA_BOOTSTRAP"
    )
    assert "ottla cluster up" in result.stderr


@pytest.mark.broker
def test_the_only_running_cluster_is_used_and_named(kafka: LocalCluster) -> None:
    env = {"OTTLA_DIR": str(Path(kafka.status().directory).parent)}
    result = CliRunner().invoke(where, [], env=env)
    assert result.stdout == f"{kafka.bootstrap}\n"
    assert result.stderr == f"using local cluster 'tests' at {kafka.bootstrap}\n"


@pytest.mark.broker
def test_a_status_names_addresses_users_and_brokers(kafka: LocalCluster) -> None:
    directory = str(Path(kafka.status().directory).parent)
    result = _run("cluster", "status", "--name", "tests", "--dir", directory)
    assert result.exit_code == 0
    assert f"bootstrap  {kafka.bootstrap}\n" in result.stdout
    assert f"alice / {kafka.status().users['alice']}" in result.stdout
    shown = json.loads(_run("cluster", "status", "--name", "tests", "--dir", directory, "--json").stdout)
    assert shown["bootstrap"] == kafka.bootstrap
    assert [broker["life"] for broker in shown["brokers"]] == ["running"] * 3
    assert "\ntests    running        3  " in _run("cluster", "list", "--dir", directory).stdout
    absent = _run("cluster", "status", "--dir", directory)
    assert absent.exit_code == 1
    assert "existing clusters: 'tests' (running); choose one with --name" in absent.stdout
    log = _run("cluster", "logs", "1", "--name", "tests", "--dir", directory, "--lines", "3").stdout
    assert len(log.splitlines()) == 3


def test_a_log_in_which_clients_name_themselves_does_not_steer_the_terminal(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path, "default")
    folder.save(ClusterRequest(brokers=1, cache_dir=tmp_path).new_state("default", random.Random(1)))
    folder.log(1).parent.mkdir()
    folder.log(1).write_text("\tclient \x1b]0;owned\x07\nnext\n")
    assert _run("cluster", "logs", "1", "--dir", str(tmp_path)).stdout == "\tclient \\x1b]0;owned\\x07\nnext\n"
