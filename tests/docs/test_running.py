"""A page is run as it stands: its commands, its programs, Ctrl-C, and what is said when something else happens."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.docs.pages import steps
from tests.docs.running import Failure, PageRun
from tests.waiting import eventually


def _run(text: str, tmp_path: Path) -> Path:
    folder, private = tmp_path / "page", tmp_path / "private"
    folder.mkdir()
    private.mkdir()
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    with PageRun("docs/page.md", folder, private=private, environment=environment) as run:
        for step in steps(text):
            run.take(step)
    return folder


def test_files_commands_and_programs_see_one_folder(tmp_path: Path) -> None:
    page = """\
```toml title="conf/a.toml"
number = 1
```

```sh
export NAME=reader
mkdir inside && cd inside
```

```sh
echo "$NAME" in "$(basename "$PWD")" && cat ../conf/a.toml
false   # exit code 1: it always fails
```

```output
reader in inside
...= 1
```

```python
import sys, tomllib
with open("conf/a.toml", "rb") as file:
    number = tomllib.load(file)["number"]
```

```python
print(number)
print("to stderr", file=sys.stderr)
open("made", "w").close()
```

```output
1
to stderr
```

```python
undefined
```

```output
Traceback (most recent call last):
  File "docs/page.md:...", line 38, in <module>
    undefined
NameError: name 'undefined' is not defined
```
"""
    assert (_run(page, tmp_path) / "made").exists()


def test_ctrl_c_ends_what_runs_until_then(tmp_path: Path) -> None:
    page = """\
```sh
python -u server.py   # until Ctrl-C, in a terminal of its own
```

```sh
test -e serving
echo one; sleep 100   # until Ctrl-C
sleep 100 | cat       # until Ctrl-C
```

```output
one
```

```python
import time
print("two")
time.sleep(100)  # until Ctrl-C
```

```output
two
```
"""
    server = """\
import pathlib, time
pathlib.Path("serving").touch()
print("serving")
try:
    time.sleep(100)
except KeyboardInterrupt:
    pathlib.Path("ended").touch()
"""
    page = f'```python title="server.py"\n{server}```\n\n{page}'
    assert (_run(page, tmp_path) / "ended").exists()


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ("```sh\ntrue\ncat nosuch\ntrue\n```\n", "docs/page.md:3: exit code 1, not 0\n.*No such file"),
        ("```sh\nfalse | true\n```\n", "docs/page.md:2: exit code 1, not 0"),
        ("```sh\ntrue   # exit code 2\n```\n", "docs/page.md:2: exit code 0, not 2"),
        ("```sh\necho a\n```\n\n```output\nb\n```\n", "docs/page.md:6: it prints something else\n. [ab]"),
        ("```python\n\n1 / 0\n```\n", "(?s)docs/page.md:2: it ended with: raised.*line 3, in .*ZeroDivisionError"),
        ("```python\nprint()\n```\n```output\n\nTraceback (most recent call last):\n```\n", "it ended with: ok"),
        ("```python\nimport os\nos._exit(3)\n```\n", "the interpreter itself, with exit code 3"),
        ("```python\nimport atexit\natexit.register(lambda: os._exit(3))\nimport os\n```\n", "ends with exit code 3"),
        ("```sh\necho a; exit 3   # until Ctrl-C\n```\n", "docs/page.md:2: exit code 3 after Ctrl-C"),
        ("```sh\necho a   # until Ctrl-C, in a terminal of its own\n```\n", "docs/page.md:2: it ended with 0"),
    ],
)
def test_what_is_not_so_is_said_with_page_and_line(page: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(Failure) as failed:
        _run(page, tmp_path)
    assert re.search(what, str(failed.value)), failed.value


def test_what_a_command_leaves_behind_ends_with_the_page(tmp_path: Path) -> None:
    folder = _run('```sh\nsleep 100 & echo $! > number\n```\n\n```sh\nkill -0 "$(cat number)"\n```\n', tmp_path)
    number = int((folder / "number").read_text())
    eventually(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
