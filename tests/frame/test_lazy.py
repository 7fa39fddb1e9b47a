"""Names that are imported on first use: from two threads at once, and without an extra installed."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ottla
from ottla._lazy import EXTRAS

SOURCE = Path(ottla.__file__).parents[1]
ROOMS = ("admin", "cluster", "events", "jobs", "lake", "net", "plan", "produce.spool", "spark", "testing")
LAZY = ("ottla", *(f"ottla.{room}" for room in ROOMS))

TWO_THREADS = """
import importlib, sys, threading
gate = threading.Barrier(2)
errors = []
def use(package, name):
    gate.wait()
    try:
        getattr(package, name)
    except BaseException as error:
        errors.append(error)
pairs = [target.rsplit(".", 1) for target in sys.argv[1:]]
threads = [threading.Thread(target=use, args=(importlib.import_module(home), name)) for home, name in pairs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for error in errors:
    raise error
"""


def _modules() -> dict[str, Path]:
    paths = {}
    for path in SOURCE.joinpath("ottla").rglob("*.py"):
        parts = path.with_suffix("").relative_to(SOURCE).parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    """The imports that run with the module, without those for type checkers only."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If):
            yield from () if ast.unparse(node.test) == "TYPE_CHECKING" else _imports(node.body)
            yield from _imports(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _imports(node.body)
            for handler in node.handlers:
                yield from _imports(handler.body)


def _homes() -> dict[str, str]:
    return {
        f"{module}.{name}": home
        for module in (*LAZY, "ottla.errors")
        for name, home in importlib.import_module(module)._HOMES.items()
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules, homes = _modules(), _homes()
    graph = {}
    for module, path in modules.items():
        imported = {homes.get(name, name) for name in _imports(ast.parse(path.read_text()).body)}
        imported |= {parent for name in (module, *imported) for parent in _parents(name)}
        graph[module] = {name for name in imported if name in modules and name != module}
    # These import nothing of Ottla's, and nothing is imported before `ottla` itself.
    graph["ottla"] -= {"ottla._lazy", "ottla._version"}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", LAZY)
def test_no_lazy_name_is_that_of_a_module(package: str) -> None:
    """Importing a module sets its name in the package, over whatever the package has under that name."""
    modules = _modules()
    assert not [name for name in importlib.import_module(package)._HOMES if f"{package}.{name}" in modules]


@pytest.mark.parametrize("package", LAZY)
def test_every_lazy_name_is_public_and_there(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(module._HOMES)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        module.Nonsense  # noqa: B018


@pytest.mark.parametrize(
    "names",
    [
        ("ottla.Consumer", "ottla.Admin"),
        ("ottla.Reader", "ottla.Fleet"),
        ("ottla.Producer", "ottla.Consumer"),
        ("ottla.net.Cluster", "ottla.admin.Committed"),
        ("ottla.events.LogSink", "ottla.events.Events"),
        ("ottla.jobs.archive", "ottla.Producer"),
        ("ottla.spark.OttlaSource", "ottla.spark.rollup"),
        ("ottla.cluster.LocalCluster", "ottla.cluster.TopicSpec"),
        ("ottla.testing.FakeKafka", "ottla.Cluster"),
    ],
    ids=" ".join,
)
def test_two_threads_use_two_names_for_the_first_time(names: tuple[str, str]) -> None:
    run = subprocess.run([sys.executable, "-c", TWO_THREADS, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("from ottla.cluster import LocalCluster", "cluster"),
        ("from ottla.cluster import TopicSpec, Condition", "cluster"),
        ("import ottla.spark; ottla.spark.session()", "spark"),
        ("from ottla.spark import OttlaSource", "spark"),
        ("from ottla.cli import main; main(['rollup', 't', '--window', '1m', '--count', '--to', 'u'])", "spark"),
        ("from ottla.cli import main; main(['cluster', 'up'])", "cluster"),
        ("from ottla.events import PrometheusSink; PrometheusSink()", "prometheus"),
        ("from ottla.engines.fleet.store import open_store; open_store('redis://h', 'g')", "fleet"),
        ("from ottla.lake.delta import require; require()", "delta"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(statement: str, extra: str) -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in EXTRAS[extra])
    run = subprocess.run([sys.executable, "-c", f"import sys; {blocked}{statement}"], capture_output=True, text=True)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert f"pip install 'ottla[{extra}]'" in last
