"""What shells are given: the script that they load once, and the answer to each TAB.

click has the protocol, and the scripts of zsh and fish. Bash has one of its own here: it hands out words that it splits
at `:` and `=` as well, which would make three words of `--bootstrap localhost:9092` and of `group:billing`.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from ottla.cli.root import COMPLETION_VARIABLE

PROGRAM = "ottla"
_BREAKS = ":=@"
"""Where bash begins a new word, unless COMP_WORDBREAKS is without them."""
_BASH = """\
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            part) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) printf -v value %%q "$value"; COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_WORDBREAKS=$COMP_WORDBREAKS %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completes what the line has up to the cursor."""

    source_template = _BASH

    def source(self) -> str:
        """Return the script. Bash 4.4 or newer runs it."""
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and what that one has so far."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not _ends_in_space(line) else ""
        return words[1:], incomplete

    def complete(self) -> str:
        """Return a line for each value, without what bash takes for words before it."""
        arguments, incomplete = self.get_completion_args()
        breaks = set(_BREAKS) & set(os.environ.get("COMP_WORDBREAKS", _BREAKS))
        typed = 1 + max((incomplete.rfind(sign) for sign in breaks), default=-1)
        return "\n".join(
            self.format_completion(CompletionItem(item.value[typed:], type=item.type) if item.type == "plain" else item)
            for item in self.get_completions(arguments, incomplete)
        )

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return kind and value; a value that goes on behind `=` or `:` gets no space."""
        kind = "part" if item.type == "plain" and item.value.endswith(("=", ":")) else item.type
        return f"{kind},{item.value}"


class Fish(FishComplete):
    """Shows help texts with commas in them to their end."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": Fish}


def script(shell: str, command: click.Command) -> str:
    """Return the script for a shell to load."""
    return SHELLS[shell](command, {}, PROGRAM, COMPLETION_VARIABLE).source()


def answer(instruction: str, command: click.Command) -> NoReturn:
    """Answer a shell, as `instruction` says: `bash_complete`, `zsh_source`. Whatever fails, it gets no values."""
    shell, _, what = instruction.partition("_")
    with suppress(Exception):
        completing = SHELLS[shell](command, {}, PROGRAM, COMPLETION_VARIABLE)
        logging.disable(logging.CRITICAL)
        sys.stdout.write(f"{completing.complete()}\n" if what == "complete" else completing.source())
        sys.stdout.flush()
    os._exit(0)  # a thread may still wait for a name server


def _ends_in_space(line: str) -> bool:
    return line[-1:].isspace() and not line[:-1].endswith("\\")
