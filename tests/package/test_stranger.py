"""A stranger installs the wheel and follows the README and the tutorial."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.clusters import Clusters
from tests.docs.pages import steps
from tests.docs.places import environment
from tests.docs.ports import Ports
from tests.docs.running import PageRun
from tests.package.environments import KERNELS, ROOT, Environment, add, installed

from ottla import __version__
from ottla._lazy import EXTRAS

ALL_HELP = """
import click
from ottla.cli import cli

def show(command, path):
    try:
        cli.main([*path, "--help"], prog_name="ottla", standalone_mode=False)
    except SystemExit as end:
        assert not end.code
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            show(command.get_command(context, name), (*path, name))

show(cli, ())
"""
ROUND_TRIP = """
import pyarrow as pa
import ottla
from ottla.testing import FakeKafka

with FakeKafka() as kafka:
    kafka.create_topic("clicks", partitions=2)
    with ottla.Producer(kafka.bootstrap) as producer:
        producer.send_table("clicks", pa.table({"value": [str(number) for number in range(1000)]}))
    with ottla.Reader(kafka.bootstrap) as reader:
        print(sum(batch.num_rows for batch in reader.read("clicks", stop="latest")), reader.count("clicks"))
"""


def test_without_extras_help_works_for_every_command(bare: Environment) -> None:
    done = bare.run("python", "-c", ALL_HELP)
    assert done.returncode == 0, done.stderr
    for command in ("cluster up", "demo", "gateway run", "rollup", "reassign plan", "work run", "archive"):
        assert f"Usage: ottla {command}" in done.stdout
    assert bare.run("ottla", "--version").stdout == f"ottla, version {__version__}\n"


def test_without_extras_records_are_written_and_read(bare: Environment) -> None:
    done = bare.run("python", "-c", ROUND_TRIP)
    assert (done.stdout, done.stderr) == ("1000 1000\n", "")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("ottla cluster up", "cluster"),
        ("ottla cluster status", "cluster"),
        ("ottla demo", "cluster"),
        ("ottla gateway run", "gateway"),
        ("ottla gateway secret web", "gateway"),
        ("ottla rollup clicks --window 1m --count --to counts", "spark"),
        ("ottla archive clicks --to lake --engine spark --bootstrap localhost:1", "spark"),
        ("ottla archive clicks --to lake --format delta --bootstrap localhost:1", "delta"),
        ("ottla work report files", "spark"),
        ("ottla work status --group etl --store redis://localhost:1 --bootstrap localhost:1", "fleet"),
        ("ottla reassign plan --balance", "operations"),
        ("ottla brokers drain 4 --bootstrap localhost:1", "operations"),
        ("python -c 'from ottla.cluster import LocalCluster'", "cluster"),
        ("python -c 'import ottla.spark; ottla.spark.session()'", "spark"),
        ("python -c 'from ottla.events import PrometheusSink; PrometheusSink()'", "prometheus"),
    ],
)
def test_what_needs_an_extra_names_it(bare: Environment, command: str, extra: str) -> None:
    done = bare.run("sh", "-c", command)
    assert done.returncode in (1, 2)
    assert f"pip install 'ottla[{extra}]'" in done.stderr.splitlines()[-1]
    assert command.startswith("python") or len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.broker
@pytest.mark.slow
def test_the_commands_of_the_readme_work_one_after_another(with_cluster: Environment) -> None:
    def ottla(*arguments: str, stdin: str = "") -> str:
        done = with_cluster.run("ottla", *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ottla("cluster", "up", "--name", "stranger", "--topic", "clicks:6")
    ottla("produce", "clicks", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    assert sorted(ottla("consume", "clicks", "--until", "latest").splitlines()) == ["1", "2", "3"]
    ottla("consume", "clicks", "--group", "app", "--until", "latest")
    assert "app" in ottla("lag")
    ottla("archive", "clicks", "--to", "clicks-archive")
    ottla("lake", "verify", "clicks-archive")
    ottla("health")
    ottla("cluster", "down", "--name", "stranger", "--yes")
    assert not [path for path in (with_cluster.folder / "state").rglob("*") if path.is_file()]


@pytest.mark.broker
@pytest.mark.slow
def test_the_program_of_the_readme_prints_what_it_says(with_cluster: Environment) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    matched = re.search(r"```python\n((?:(?!```).)*)```\n+```output\n(.*?)```", readme, re.S)
    assert matched
    program, output = matched.groups()
    (with_cluster.folder / "program.py").write_text(program)
    done = with_cluster.run("python", "program.py")
    assert (done.stdout, done.stderr) == (output, "")


@pytest.mark.broker
@pytest.mark.long
def test_the_tutorial_works_from_its_text_with_the_wheel_alone(with_cluster: Environment, tmp_path: Path) -> None:
    add(with_cluster, "polars")  # the page says so
    ports, folder, state = Ports(), tmp_path / "page", tmp_path / "state"
    folder.mkdir()
    (tmp_path / "private").mkdir()
    variables = environment(tmp_path / "home", state, with_cluster.folder / "venv/bin")
    variables.pop("PYTHONPATH", None)
    variables["NUMBA_CACHE_DIR"] = str(KERNELS)
    try:
        text = ports.replaced((ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))
        with PageRun("docs/tutorial.md", folder, private=tmp_path / "private", environment=variables) as run:
            for step in steps(text):
                run.take(step)
    finally:
        Clusters(state / "ottla/clusters").down()
        ports.release()


@pytest.mark.long
@pytest.mark.parametrize("extra", [*EXTRAS, "all"])
def test_each_extra_brings_what_it_says(wheel: Path, tmp_path: Path, extra: str) -> None:
    installation = installed(wheel, tmp_path, [extra])
    names = EXTRAS.get(extra) or [name for names in EXTRAS.values() for name in names]
    imported = installation.run("python", "-c", f"import {', '.join(names)}")
    assert imported.returncode == 0, imported.stderr
    assert installation.run("python", "-c", ALL_HELP).returncode == 0
    assert installation.run("python", "-c", ROUND_TRIP).stdout == "1000 1000\n"
