"""The parser of pages: what becomes a step, what is refused, what counts as the same output."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.docs.matching import difference, matches
from tests.docs.pages import (
    Commands,
    End,
    File,
    Output,
    PageError,
    Program,
    Script,
    indented_blocks,
    not_run,
    shows_start,
    starts,
    steps,
)
from tests.docs.ports import Ports

PAGE = """\
# A page

```sh
ottla cluster up --port 9092 --topic clicks:3
seq 3 | ottla produce clicks   # a comment
ottla consume clicks           # until Ctrl-C
ottla consume nosuch           # exit code 1: there is no such topic
echo done
```

```output
1
...
```

```toml title="links.toml"
a = 1
```

```text
offset = NUMBER
```

```python
print(1)
```

- in a list:

  ```python
  if True:
      print(2)
  ```

<!-- not run: needs the root of a machine -->
```sh
systemctl start ottla
```

```output
nothing
```
"""


def test_a_page_becomes_the_steps_of_its_reader() -> None:
    assert steps(PAGE) == [
        Commands(
            4,
            (
                Script(4, "ottla cluster up --port 9092 --topic clicks:3\nseq 3 | ottla produce clicks   # a comment"),
                Script(6, "ottla consume clicks", end=End.CTRL_C),
                Script(7, "ottla consume nosuch", code=1),
                Script(8, "echo done"),
            ),
            Output(12, "1\n..."),
        ),
        File(17, "links.toml", "a = 1\n"),
        Program(25, "print(1)", is_endless=False),
        Program(31, "if True:\n    print(2)", is_endless=False),
    ]
    assert not_run(PAGE) == [(35, "needs the root of a machine")]


def test_a_command_has_all_of_its_lines() -> None:
    page = (
        "```sh\na \\\n  b   # exit code 2\nc |\n  d   # until Ctrl-C, in a terminal of its own\n"
        "e <<END\n# until Ctrl-C\nEND\n```\n"
    )
    (block,) = steps(page)
    assert isinstance(block, Commands)
    assert block.scripts == (
        Script(2, "a \\\n  b", code=2),
        Script(4, "c |\n  d", end=End.STAYS),
        Script(6, "e <<END\n# until Ctrl-C\nEND"),
    )


def test_a_program_may_be_endless_or_raise() -> None:
    endless, raising = steps(
        "```python\nwhile True:  # until Ctrl-C\n    pass\n```\n"
        "```python\n1 / 0\n```\n```output\nTraceback (most recent call last):\n...\nZeroDivisionError: ...\n```\n"
    )
    assert isinstance(endless, Program)
    assert isinstance(raising, Program)
    assert (endless.is_endless, endless.raises) == (True, False)
    assert (raising.is_endless, raising.raises) == (False, True)


@pytest.mark.parametrize(
    ("page", "line", "what"),
    [
        ("```python\nprint(1)\n", 1, "not closed"),
        ("\n```\nls\n```\n", 2, "a block of ''"),
        ("```json\n{}\n```\n", 1, "a block of 'json'"),
        ("text\n```output\n1\n```\n", 3, "without a python or sh block"),
        ("```sh\nls\n```\n```output\n1\n```\n```output\n2\n```\n", 8, "without a python or sh block"),
        ("```sh\nls\n$ ls\n```\n", 3, "a prompt"),
    ],
)
def test_a_page_that_breaks_the_convention_is_refused_with_its_line(page: str, line: int, what: str) -> None:
    with pytest.raises(PageError, match=what) as refused:
        steps(page)
    assert refused.value.line == line


def test_clusters_are_known_by_what_their_brokers_are() -> None:
    taken = steps(
        "```sh\nottla cluster up --brokers 3 --topic a:3 \\\n  --topic=b --port 9092   # three\n"
        "ottla cluster up --name hub --port 9192\n```\n"
    )
    assert starts(taken) == {"default": ("--brokers 3", "--port 9092"), "hub": ("--port 9192",)}
    assert not shows_start(taken)
    assert shows_start(steps("```sh\nottla cluster up\n```\n```output\nstarted in ... s\n...\n```\n"))


def test_indented_code_is_found_and_lists_are_not() -> None:
    page = (
        "text\n\n    ottla consume\n\n- item\n\n    its second paragraph\n\n```sh\nif a; then\n\n    b\nfi\n```\n"
        "text\n    that goes on\n\n!!! note\n\n    noted\n"
    )
    assert list(indented_blocks(page)) == [3]


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a\nb", "a\nb\n"),
        ("a\n...\nd", "a\nb\nc\nd\n"),
        ("a\n...\nb", "a\nb\n"),
        ("took ... s", "took 1.5 s\n"),
        ("...\nValueError: ...", "Traceback\n  somewhere\nValueError: bad\n"),
        ("name   offset\nclicks      1", "name offset\nclicks 1   \n\n"),
        ("[1] (a|b)*", "[1] (a|b)*\n"),
        ("", ""),
    ],
)
def test_what_is_printed_is_what_is_expected(expected: str, printed: str) -> None:
    assert matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [("a", "a\nb\n"), ("a\nb", "a\n"), ("took ... s", "took 1.5\ns\n"), ("a...\nb", "a\nx\nb\n"), ("", "a\n")],
)
def test_what_is_printed_is_something_else(expected: str, printed: str) -> None:
    assert not matches(expected, printed)
    assert difference(expected, printed)


def test_a_port_that_is_taken_is_replaced_with_its_neighbours_wherever_it_stands(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = Ports(tmp_path)
        text = "ottla cluster up --port 9092\n127.0.0.1:9093,127.0.0.1:9094 localhost:1 9,092 9092,000 09092\n"
        first = ports.replaced(text)
        others = Ports(tmp_path)
        second = others.replaced(text)
        assert second != first, "two runs at once have ports of their own"
        port = int(second.split()[4])
        assert second == (
            f"ottla cluster up --port {port}\n127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
            " localhost:1 9,092 9092,000 09092\n"
        )
        assert (port % 10, len(str(port))) == (2, 4)
        assert ports.replaced(text) == first
        ports.release()
        others.release()
