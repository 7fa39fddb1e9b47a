"""Errors of the command line itself: what users of other tools type, old spellings, and ends before starts."""

from __future__ import annotations

import pytest
from tests.cli.commands import run

from ottla.cli.advice import reword
from ottla.cli.values.unit_ids import parse_unit_id
from ottla.errors import OffsetsLost
from ottla.model import OffsetRange

NOWHERE = ("--bootstrap", "127.0.0.1:9")


@pytest.mark.parametrize("group", [(), ("lake",), ("work",), ("work", "errors"), ("topics",)])
def test_a_group_without_a_command_shows_its_help(group: tuple[str, ...]) -> None:
    ended = run(*group)
    assert ended.exit_code == 2
    assert ended.stderr.startswith("Usage: ")
    assert "error:" not in ended.stderr
    assert not ended.stderr.rstrip().endswith("--help'")


@pytest.mark.parametrize("group", [("cluster",), ("lake",), ("mirror",), ("work", "errors")])
@pytest.mark.parametrize("option", ["--bootstrap", "-b", "--profile"])
def test_no_option_is_named_that_no_command_of_a_group_has(group: tuple[str, ...], option: str) -> None:
    assert "after" not in run(*group, option, "x").stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("consume", "-t", "clicks", "-C"), "no such option -t: the topic is an argument here"),
        (("consume", "clicks", "-o", "beginning"), "it is --from PLACE here"),
        (("consume", "clicks", "-e"), "it is --until latest here"),
        (("consume", "clicks", "-G", "app"), "it is --group NAME here"),
        (("consume", "clicks", "--brokers", "b:9092"), "it is --bootstrap HOST:PORT,... here"),
        (("topics", "list", "--bootstrap-server", "b:9092"), "it is --bootstrap HOST:PORT,... here"),
        (("consume", "clicks", "--from-beginning"), "it is --from earliest here"),
        (("consume", "clicks", "--max-messages", "5"), "it is --max-records N here"),
        (("consume", "--topic", "clicks"), "the topic is an argument here, as in 'ottla consume TOPIC'"),
        (("produce", "--topic", "clicks"), "the topic is an argument here, as in 'ottla produce TOPIC'"),
        (("produce", "clicks", "-K:"), "no such option -K: it is --key-separator SEP here; see"),
        (("produce", "clicks", "--value", "x"), "values are lines of a file or of standard input"),
        (("lag", "--group", "app"), "the group is an argument here, as in 'ottla lag show GROUP'"),
        (
            ("groups", "describe", "--group", "app"),
            "the group is an argument here, as in 'ottla groups describe GROUP'",
        ),
        (("groups", "reset", "--group", "app"), "the group is an argument here, as in 'ottla groups reset GROUP'"),
        (("work", "run", "--fleet", "app"), "it is --group NAME here"),
        (("consume", "clicks", "--from", "beginning"), "it is earliest here; use earliest, latest"),
        (("consume", "clicks", "--from", "end"), "it is latest here; use earliest, latest"),
        (("consume", "clicks", "--from", "s@1767225600500"), "it is @1767225600.5 here; use earliest, latest"),
        (("consume", "clicks", "--from", "s@" + "9" * 400), "9' is not a place in a topic: use earliest, latest"),
        (
            ("--bootstrap", "b:9092", "topics", "list"),
            "after the name of the command, as in 'ottla topics list --bootst",
        ),
        (("topics", "--profile", "prod", "list"), "as in 'ottla topics COMMAND --profile ..."),
        (("consume", "clicks", "--offset", "5"), "it is --from PLACE here"),
        (("groups", "reset", "app", "--offset", "5"), "it is --to PLACE here"),
        (("topics", "create", "clicks", "--config", "a=b"), "it is --setting KEY=VALUE here"),
        (("-C", "-t", "clicks"), "that is the command 'ottla consume TOPIC'"),
        (("-b", "b:9092"), "commands call it --bootstrap"),
    ],
)
def test_options_of_other_tools_get_a_hint(arguments: tuple[str, ...], hint: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert hint in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("help",), "ottla --help"),
        (("topics", "help"), "ottla topics --help"),
        (("version",), "ottla --version"),
        (("gateway", "serve"), "ottla gateway run"),
        (("cluster", "start"), "ottla cluster up"),
        (("topics", "rm", "clicks"), "ottla topics delete"),
        (("topics", "ls"), "ottla topics list"),
        (("topcs", "list"), "ottla topics"),
    ],
)
def test_commands_of_other_tools_get_a_hint(arguments: tuple[str, ...], meant: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert "error: no such command " in ended.stderr
    assert f"did you mean '{meant}'?" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("groups", "reset", "app", "--to-offst", "5"), "did you mean --to?"),
        (("consume", "clicks", "--exit-at-en"), "did you mean --until latest?"),
        (("consume", "clicks", "--isolatoin", "x"), "did you mean --isolation?"),
    ],
)
def test_a_hidden_old_spelling_is_never_suggested(arguments: tuple[str, ...], hint: str) -> None:
    assert hint in run(*arguments).stderr


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_at_the_end_of_an_error_stay(name: str) -> None:
    assert run("consume", name).stderr.endswith("and not . or ..\n")


@pytest.mark.parametrize("command", [("consume", "c"), ("query", "c", "--count"), ("archive", "c", "--to", "nowhere")])
@pytest.mark.parametrize(("start", "stop"), [("5", "3"), ("-1h", "-2h"), ("-5", "-9"), ("latest", "-5")])
def test_an_end_before_the_start_is_a_usage_error(command: tuple[str, ...], start: str, stop: str) -> None:
    ended = run(*command, "--from", start, "--until", stop, *NOWHERE)
    assert ended.exit_code == 2
    assert "error: --until " in ended.stderr
    assert " lies before --from " in ended.stderr


def test_a_linger_longer_than_the_delivery_timeout_is_named_by_its_options() -> None:
    ended = run("produce", "c", "--linger", "5minutes", *NOWHERE)
    assert (ended.exit_code, ended.stderr) == (2, "error: --linger 5m must be shorter than --delivery-timeout 2m\n")


@pytest.mark.parametrize("place", ["soon", "2025-13-01T00:00Z"])
def test_a_command_that_is_resumed_offers_no_relative_times(place: str) -> None:
    ended = run("replay", "nowhere", "--to", "c", "--from", place, *NOWHERE)
    assert ended.exit_code == 2
    assert "-2h" not in ended.stderr


def test_the_help_of_until_says_what_minus_n_means_there() -> None:
    text = " ".join(run("consume", "--help").stdout.split())
    start, _, stop = text.partition("Where to start:")[2].partition("Where to end:")
    assert "-N (the last N of each partition)" in start
    assert "-N (N before the end of each partition)" in stop


def test_query_is_not_told_of_an_option_that_it_lacks() -> None:
    error = str(OffsetsLost("c", 0, start=0, stop=5, resume=5, reason="deleted"))
    assert "--on-lost" in reword(error, command="consume")
    assert "--on-lost" not in reword(error, command="query")
    assert "--from earliest" in reword(error, command="query")


@pytest.mark.parametrize("text", ["a-b.c/3/10-20", "a-b.c-3[10, 20)"])
def test_a_unit_is_understood_as_lists_and_as_warnings_name_it(text: str) -> None:
    assert parse_unit_id(text) == OffsetRange("a-b.c", 3, 10, 20)


def test_a_usage_error_comes_without_the_cluster_that_would_be_used() -> None:
    ended = run("consume", "clicks", "--from", "nonsense", env={"OTTLA_BOOTSTRAP": "127.0.0.1:9"})
    assert ended.stderr.startswith("error: --from: 'nonsense' is not a place")
    wrong = run("consume", "clicks", env={"OTTLA_BOOTSTRAP": "a:b:c"})
    assert wrong.stderr.startswith("error: --bootstrap (env var: OTTLA_BOOTSTRAP): 'a:b:c' is not HOST:PORT")


def test_a_missing_argument_is_named_in_one_line() -> None:
    assert run("completion").stderr == (
        "error: missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish; see 'ottla completion --help'\n"
    )
