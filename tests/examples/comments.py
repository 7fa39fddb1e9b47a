"""What the comment on top of an example says to type, and how to type it.

The text of an example comes in; its commands go out, as they stand in the comment. They run in a shell of their own,
with the examples beside them and the addresses of the tests' brokers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ottla import Admin
from ottla.cluster import TopicSpec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_COMMAND = re.compile(r"^(?:# )? {4}(\S.*?)(?:\s+# .*)?$", re.MULTILINE)
_TOPIC = re.compile(r"--topic (\S+)")
_SECONDS = 120


def commands(example: str) -> list[str]:
    """The lines of the first comment that are set in by four spaces, without what follows a `#`."""
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    comment = text.split('"""')[1] if example.endswith(".py") else text.split("\n\n[")[0]
    return _COMMAND.findall(comment)


def command(example: str, words: str) -> str:
    """The one command of the comment that has these words."""
    (found,) = [line for line in commands(example) if words in line]
    return found


def topics_of(example: str) -> list[tuple[str, int]]:
    """The topics that `ottla cluster up` makes according to the comment, with their partitions."""
    ups = [line for line in commands(example) if line.startswith("ottla cluster up")]
    specs = [TopicSpec.parse(topic) for line in ups for topic in _TOPIC.findall(line)]
    return [(spec.name, spec.partitions) for spec in specs]


def create(bootstrap: str, topics: Iterable[tuple[str, int]]) -> None:
    """Make topics with this many partitions: nothing that an earlier test has written is in them."""
    with Admin(bootstrap) as admin:
        for topic, partitions in topics:
            if topic in admin.topic_names():
                admin.delete_topics(topic)
            admin.create_topic(topic, partitions=partitions)


def place(folder: Path) -> Path:
    """Return a folder with the examples in it, as a user has them."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def start(line: str, *, bootstrap: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a command in a shell, which becomes the command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "OTTLA_BOOTSTRAP": bootstrap,
        "PATH": path,
        "PYSPARK_PYTHON": sys.executable,
        **variables,
    }
    return subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
        start_new_session=True,  # what it starts can be killed with it
    )


def run(line: str, *, bootstrap: str, cwd: Path, code: int = 0, **variables: str) -> str:
    """Run a command to its end and return what it printed."""
    started = start(line, bootstrap=bootstrap, cwd=cwd, **variables)
    out, err = started.communicate(timeout=_SECONDS)
    assert started.returncode == code, f"{line}: exit code {started.returncode}\n{out}\n{err}"
    return out
