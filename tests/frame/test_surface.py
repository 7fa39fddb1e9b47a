"""The package as an importer sees it: what is public, and what importing it costs."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
from click.testing import CliRunner

import ottla
from ottla import errors
from ottla.cli import cli
from ottla.errors import ErrorCode

HEAVY = ("numba", "pyspark", "redis", "pyarrow", "numpy", "kio", "click", "ssl")


def _imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules), file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())


def test_importing_ottla_imports_nothing_heavy() -> None:
    assert not _imported_by("import ottla").intersection(HEAVY)


def test_the_network_needs_no_kernels() -> None:
    assert not _imported_by("import ottla; ottla.Admin; ottla.Cluster").intersection({"numba", "pyarrow", "redis"})


def test_the_command_overview_needs_no_kernels() -> None:
    modules = _imported_by("from ottla.cli import cli; cli(['--help'], standalone_mode=False)")
    assert not modules.intersection({"numba", "pyarrow", "redis", "psutil"})


@pytest.mark.parametrize("command", ["consume", "produce", "query", "archive", "topics"])
def test_commands_do_without_pandas(command: str) -> None:
    assert not _imported_by(f"import ottla.cli.{command}").intersection({"pandas", "pyspark"})


def test_a_command_that_is_nearly_right_is_named() -> None:
    ended = CliRunner().invoke(cli, ["produc"])
    assert ended.exit_code == 2
    assert "did you mean 'ottla produce'?" in ended.stderr


def test_the_public_names_are_exactly_these() -> None:
    assert ottla.__all__ == sorted(ottla._HOMES)
    for name in ottla.__all__:
        assert getattr(ottla, name).__doc__, f"{name} has no docstring"


def test_every_broker_error_code_has_a_row_and_unknown_ones_count_as_server_errors() -> None:
    for code in ErrorCode:
        assert errors.error_row(int(code)).code is code
    assert errors.error_row(32_000).code is ErrorCode.unknown_server_error


def test_errors_of_the_documents_say_what_to_do() -> None:
    for code in (1, 6, 10, 4):  # offset out of range, not leader, message too large, fetch too small
        error = errors.BrokerError(code, "Fetch of clicks-0 from broker 1")
        assert "hint: " in str(error)
        assert "clicks-0" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("why"),
        errors.CorruptBatch("why", base_offset=5, position=7, topic="clicks", partition=3),
        errors.ConnectFailed("a:1", "why"),
        errors.NoBrokerReachable((errors.Attempt("a:1", "why", 1.5),), 2.0, "do this"),
        errors.DeadlineExceeded("reading", 2.0, ("why",)),
        errors.BrokerError(6, "Fetch of clicks-0", "moved"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes_with_all_they_carry(error: errors.OttlaError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_every_error_is_an_ottla_error() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > 10
    assert all(issubclass(cls, errors.OttlaError) for cls in classes)
