"""The public API of the package, and the cost of importing it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

import ottla
from ottla import errors
from ottla.cli import cli
from ottla.cli.values.quantities import parse_size
from ottla.engines.fleet.jobs import JOBS
from ottla.errors import ErrorCode
from ottla.fetch.options import Fetching, OnLost
from ottla.jobs import event_time
from ottla.lake.layout import Format
from ottla.lake.writer import FileOptions
from ottla.mirror.journal import TOPIC
from ottla.mirror.rules import Action
from ottla.spark import rollup_fields

HEAVY = ("numba", "pyspark", "redis", "pyarrow", "numpy", "kio", "click", "ssl")


def _imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules), file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())


def test_importing_ottla_imports_nothing_heavy() -> None:
    assert not _imported_by("import ottla").intersection(HEAVY)


def test_the_network_needs_no_kernels() -> None:
    assert not _imported_by("import ottla; ottla.Admin; ottla.Cluster").intersection({"numba", "pyarrow", "redis"})


ALL_HELP = """
import sys
import click
from ottla.cli import cli

def show(command, path):
    try:
        cli.main([*path, "--help"], prog_name="ottla", standalone_mode=False)
    except SystemExit as end:
        assert not end.code
    print(" ".join(("ottla", *path)) + ": " + " ".join(sys.modules), file=sys.stderr)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            show(command.get_command(context, name), (*path, name))

show(cli, ())
"""


def test_help_of_no_command_imports_anything_heavy() -> None:
    run = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, check=True)
    seen = dict(line.split(": ") for line in run.stderr.splitlines())
    assert {"ottla", "ottla consume", "ottla rollup", "ottla cluster up", "ottla work errors list"} <= set(seen)
    for command, modules in seen.items():
        assert not {*HEAVY, "pandas", "psutil", "hypothesis"}.intersection(modules.split()) - {"click"}, command


def test_options_offer_what_the_library_has() -> None:
    """Some choices, defaults and texts are written out where a command is declared: to import them would take long."""
    assert [*_option("archive", "--format").type.choices] == [member.value for member in Format]
    assert event_time.ACCEPTED in _help("archive", "--event-time")
    assert _option("archive", "--max-folders").default == FileOptions().max_folders
    assert parse_size(_option("consume", "--max-batch-size").default) == Fetching().max_batch_bytes
    assert [*_option("consume", "--on-lost").type.choices] == [member.value for member in OnLost]
    assert [*_option("work", "run", "--on-lost").type.choices] == [member.value for member in OnLost]
    assert set(_option("archive", "--on-lost").type.choices) < {member.value for member in OnLost}
    assert _option("work", "serve", "--group").default == JOBS
    for rule in ("--on-foreign", "--on-lost", "--on-target-lost"):
        assert [*_option("mirror", "run", rule).type.choices] == [member.value for member in Action]
    assert _option("mirror", "run", "--journal").default == TOPIC
    assert rollup_fields.ACCEPTED in _help("rollup", "--by")
    assert rollup_fields.ACCEPTED_TIMES in _help("rollup", "--event-time")


def _option(*path: str) -> Any:
    command: Any = cli
    for name in path[:-1]:
        command = command.get_command(click.Context(command), name)
    return next(parameter for parameter in command.params if path[-1] in parameter.opts)


def _help(*path: str) -> str:
    return str(_option(*path).help)


def test_spark_finds_the_source_and_asks_for_its_columns_without_a_client() -> None:
    """It does so in two processes of their own, before any that reads."""
    options = {"kafka.bootstrap.servers": "host:9092", "subscribe": "clicks"}
    statement = f"from pyspark_ottla import DefaultSource; DefaultSource({options}).schema()"
    assert not {"numpy", "pyarrow", "kio", "ssl"}.intersection(_imported_by(statement))


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


def test_every_error_is_exported_and_in_the_tree() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    for cls in classes:
        assert cls.__name__ in errors.__all__
        assert getattr(ottla, cls.__name__) is cls
        assert f" {cls.__name__} " in (errors.__doc__ or "").replace("\n", " "), f"{cls.__name__} is not in the tree"
