"""How large a module, a class, a function and a constructor may be, and which ones may be larger, and why.

A budget is a sign, not a crime: look for the second idea first. What stays larger is listed here
with its reason, and with its size: it may shrink, and then the row must follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "ottla"
MODULE_LINES = 500
CLASS_METHODS = 30
FUNCTION_LINES = 90
CONSTRUCTOR_PARAMETERS = 12


class Size(NamedTuple):
    """Something that is larger than its budget."""

    what: str
    """`module:NAME`, `class:MODULE:NAME`, ..., as in `EXCEPTIONS`."""
    size: int
    budget: int


EXCEPTIONS = {
    "function:cli.archive.command:archive": "a command has a parameter and a help text for each option",
    "function:cli.lag.serve:serve": "the same",
    "constructor:cluster.local:LocalCluster": "settings of a cluster, all optional, for programs and tests",
    "module:consume.consumer": "the public interface of a consumer: most of it is docstrings",
    "class:consume.consumer:Consumer": "17 public methods, as users of other clients expect them",
    "constructor:consume.consumer:Consumer": "settings, most of them shared with the other clients",
    "constructor:engines.fleet.fleet:Fleet": "settings, most of them shared with the other clients",
    "class:engines.fleet.memory_store:MemoryStore": "one method for each step of `Rules`",
    "class:engines.fleet.redis_store:RedisStore": "one method for each step of `Rules`",
    "class:engines.fleet.sqlite_store:SqliteStore": "one method for each step of `Rules`",
    "class:engines.fleet.rules:Rules": "every transition of a unit in one place, which is its point",
    "module:errors": "one tree of exceptions",
    "module:fetch.fetcher": "the actor of one loop: every event of it in one place",
    "class:fetch.fetcher:Fetcher": "one method for each event of the loop",
    "class:fetch.reader:Reader": "13 public methods; the others serve several of them",
    "module:fetch.reader": "the public interface of a reader: most of it is docstrings",
    "class:mirror.forwarder:Forwarder": "one method for each event of the loop",
    "class:produce.core:Core": "every decision about sending in one pure class, run through simulated histories",
    "module:produce.core": "that class and the values it is made of",
    "module:produce.intake": "its two halves share the argument why no record is lost between them",
    "class:produce.lane:Lane": "the state machine of one partition",
    "class:produce.producer:Producer": "17 public methods, some of them for asyncio as well",
    "constructor:produce.producer:Producer": "settings, most of them shared with the other clients",
    "module:produce.producer": "the public interface of a producer: most of it is docstrings",
    "module:produce.sender": "carries out every effect of the core, one branch each",
    "class:produce.sender:Sender": "half of it are the calls of other threads, one method each",
    "class:produce.spool.store:Store": "one method for each operation on the files of a spool",
    "class:produce.topics:Topics": "the second half of the core",
    "function:wire.kernels.decoding:decode_records": "a kernel: calls inside of it cost as much as the work",
    "function:wire.kernels.tallying:tally_records": "the same",
}
"""What may exceed its budget, and why."""


def sizes(root: Path = SOURCE) -> Iterator[Size]:
    """Everything that exceeds its budget."""
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        text = path.read_text(encoding="utf-8")
        yield from _over(f"module:{module}", text.count("\n"), MODULE_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield from _class(module, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield from _over(f"function:{module}:{node.name}", lines, FUNCTION_LINES)


def _class(module: str, node: ast.ClassDef) -> Iterator[Size]:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    yield from _over(f"class:{module}:{node.name}", len(methods), CLASS_METHODS)
    for method in methods:
        if method.name == "__init__":
            parameters = len(method.args.args) + len(method.args.kwonlyargs) - 1
            yield from _over(f"constructor:{module}:{node.name}", parameters, CONSTRUCTOR_PARAMETERS)


def _over(what: str, size: int, budget: int) -> Iterator[Size]:
    if size > budget:
        yield Size(what, size, budget)


def problems() -> Iterator[str]:
    """What exceeds its budget and is not listed, and what is listed and does not."""
    seen = set()
    for what, size, budget in sizes():
        seen.add(what)
        if what not in EXCEPTIONS:
            yield f"{what} has {size}, the budget is {budget}: look for the second idea in it, or list it in {__file__}"
    for what in sorted(EXCEPTIONS.keys() - seen):
        yield f"{what} is within its budget now: remove it from EXCEPTIONS in {__file__}"
