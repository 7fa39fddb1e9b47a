"""What shells are given: the script that they load once, and the answer to each TAB.

click has the protocol, and the scripts of zsh and fish. Bash has one of its own here: it hands out words that it splits
at `:` and `=` as well, which would make three words of `--bootstrap localhost:9092` and of `group:billing`.

Names come from brokers, where strangers choose them: whatever reaches the line is one word that the shell does not
interpret. zsh and fish quote what they insert; bash inserts it as it is, so it is quoted here.
"""

from __future__ import annotations

import logging
import os
import re
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
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            part,*) compopt -o nospace; COMPREPLY+=("${line#*,}") ;;
            plain,*) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_WORDBREAKS=$COMP_WORDBREAKS %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_SPECIAL = re.compile(r"[^\w./:=@%+,-]")
"""What means something to bash somewhere in a word, and more. Letters of all languages are none of it."""


class _Printable(ShellComplete):
    """Offers no value that has control characters, or that would be no word at all."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return values of one line each. Directories and files have none: the shell knows them."""
        items = super().get_completions(args, incomplete)
        return [item for item in items if item.type != "plain" or (item.value and item.value.isprintable())]


class Bash(_Printable, BashComplete):
    """Completes what the line has up to the cursor."""

    source_template = _BASH

    def source(self) -> str:
        """Return the script. Bash 4.4 or newer runs it."""
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and what that one has so far."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        is_in_word = bool(_begun(line, "")[0]) or not _ends_in_space(line)
        incomplete = words.pop() if words and is_in_word else ""
        return words[1:], incomplete

    def complete(self) -> str:
        """Return a line for each value, quoted, without what bash takes for words before it."""
        arguments, incomplete = self.get_completion_args()
        breaks = set(_BREAKS) & set(os.environ.get("COMP_WORDBREAKS", _BREAKS))
        quote, begun = _begun(os.environ["COMP_LINE"], "".join(breaks))
        option, equals, _ = incomplete.partition("=")
        before = option + equals if equals and option.startswith("-") else ""  # values come without it
        typed = len(incomplete) - len(begun)
        return "\n".join(
            self._line(item, quoted((before + item.value)[typed:], quote))
            if item.type == "plain"
            else self._line(item, item.value)
            for item in self.get_completions(arguments, incomplete)
        )

    def _line(self, item: CompletionItem[str], word: str) -> str:
        """Return kind and word; what goes on behind it gets no space."""
        return f"{'part' if item.is_part else item.type},{word}"


class Zsh(_Printable, ZshComplete):
    """Offers whatever click's script takes."""


class Fish(_Printable, FishComplete):
    """Shows help texts with commas in them to their end, and takes no value for an option of `echo`."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","').replace(
        "echo $metadata[2]", "printf '%%s\\n' $metadata[2]"
    )

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return no value that begins with a tilde: fish would insert it unquoted, and make a folder of it."""
        items = super().get_completions(args, incomplete)
        return [item for item in items if item.type != "plain" or not item.value.startswith("~")]


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


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


def quoted(value: str, quote: str = "") -> str:
    """Return a value as bash reads it back: as part of a word, or of one that an open quote has begun."""
    if quote:
        if quote == "'":
            word = value.replace("'", r"'\''")
        else:
            # History expansion spares an exclamation mark that is escaped, but in quotes the backslash would stay.
            word = re.sub(r'[\\"$`]', r"\\\g<0>", value).replace("!", r'"\!"')
        return word + quote if word.endswith(quote) else word  # bash takes such a quote for the closing one
    return _SPECIAL.sub(r"\\\g<0>", value)


def _begun(line: str, breaks: str) -> tuple[str, str]:
    """Return the quote that is open at the end of a line, if any, and what is there of the word that bash completes.

    A word begins behind a space or a break, and at an open quote. Nothing in quotes is a break.
    """
    quote, start, opened, position = "", 0, 0, 0
    while position < len(line):
        sign = line[position]
        if sign == "\\" and quote != "'":
            position += 1
        elif sign == quote:
            quote = ""
        elif quote:
            pass
        elif sign in "'\"":
            quote, opened = sign, position
        elif sign in breaks or sign.isspace():
            start = position if sign == "@" else position + 1  # bash keeps an @ that begins a word
        position += 1
    return quote, (split_arg_string(line[opened if quote else start :]) or [""])[-1]


def _ends_in_space(line: str) -> bool:
    return line[-1:].isspace() and not line[:-1].endswith("\\")
