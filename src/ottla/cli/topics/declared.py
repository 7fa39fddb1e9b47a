"""`ottla topics diff`, `apply` and `export`: topics as a file declares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import table, terminal_width
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.operations.topics.comparing import Allow, Change, Plan

DIFFERENT = 3
"""The exit code of `diff` if something differs, as that of `ottla audit compare`."""
_SHOWN = 5
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_file_argument = click.argument("file", type=_FILE)
_OPTIONS = {"data": "--allow-data-loss", "settings": "--delete-settings", "topics": "--delete-topics"}


@click.command()
@_file_argument
@json_option
@with_admin
@click.pass_context
def diff(context: click.Context, /, admin: Admin, *, file: Path, as_json: bool) -> None:
    """Show how topics differ from FILE.

    Changes nothing. FILE declares topics in TOML, for one cluster. Topics that FILE does not have are named, and are no
    difference. Exit codes: 0 if nothing differs, 1 failure, 2 for an invalid file or one for another cluster, 3 if
    something differs.

    \b
    Examples:
      ottla topics diff topics.toml
      ottla topics diff topics.toml --json | jq '.changes[].topic'
    """
    plan = _plan(admin, file, ())
    if as_json:
        click.echo(json_text(_plan_dict(plan)))
    else:
        click.echo(_plan_text(plan))
    context.exit(DIFFERENT if plan.changes else 0)


@click.command()
@_file_argument
@click.option("--allow-data-loss", is_flag=True, help="Also shorten retention and change cleanup policies.")
@click.option("--delete-settings", is_flag=True, help="Also remove settings of topics that FILE does not have.")
@click.option("--delete-topics", is_flag=True, help="Also delete topics that FILE does not have, with their records.")
@yes_option
@dry_run_option
@json_option
@with_admin
def apply(
    admin: Admin,
    *,
    file: Path,
    allow_data_loss: bool,
    delete_settings: bool,
    delete_topics: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change topics to what FILE declares.

    Creates topics, adds partitions, alters settings. Shows what differs, has the brokers check all of it, and asks
    before it changes anything; then reports each change. Whatever would lose records, settings or topics is left alone
    unless an option allows it. Applying a file twice changes nothing the second time. Replicas are left to 'ottla
    topics replicas'.

    \b
    Examples:
      ottla topics apply topics.toml --dry-run
      ottla topics apply topics.toml
      ottla topics apply topics.toml --allow-data-loss --delete-settings --yes
    """
    from ottla.operations.topics.applying import apply_plan, check_plan
    from ottla.operations.topics.comparing import Allow

    flags = {Allow.DATA: allow_data_loss, Allow.SETTINGS: delete_settings, Allow.TOPICS: delete_topics}
    plan = _plan(admin, file, [kind for kind, is_allowed in flags.items() if is_allowed])
    _refuse_impossible(plan)
    check_plan(admin, plan)
    applied: Sequence[Change] = ()
    if plan.to_apply and not dry_run:
        if not yes:
            click.echo(_plan_text(plan), err=True)
        confirm(f"this changes topics of cluster {admin.cluster.known.cluster_id}: {_counts(plan.to_apply)}", yes=yes)
        applied = apply_plan(admin, plan, done=lambda change: None if as_json else click.echo(_done(change)))
    if as_json:
        click.echo(json_text({**_plan_dict(plan), "applied": [change.to_json() for change in applied]}))
        return
    if dry_run or not plan.to_apply:
        click.echo(_plan_text(plan))
    elif plan.held:
        click.echo(f"left as they are:\n{_changes_table(plan.held)}", err=True)


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=complete_topics)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to this new file."
)
@with_admin
def export(admin: Admin, *, patterns: tuple[str, ...], output: Path | None) -> None:
    """Write topics as a file for 'diff' and 'apply'.

    The file has partitions, replicas and settings of their own. PATTERN is a name, or has * and ?. Kafka's internal
    topics are left out. A file that exists is not replaced.

    \b
    Examples:
      ottla topics export --output topics.toml
      ottla topics export 'shop.*'
    """
    from ottla.files import create_whole
    from ottla.operations.topics.applying import live_topics
    from ottla.operations.topics.exporting import export as write

    found = live_topics(admin, patterns)
    text = write(admin.cluster.known.cluster_id or "", found)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        create_whole(output, text.encode())
    except FileExistsError as error:
        raise CommandFailed(f"the file {output} exists already: remove it, or choose another name") from error
    except OSError as error:
        raise CommandFailed(f"the file {output} cannot be written: {error.strerror}") from error
    click.echo(f"{len(found):,} topic{'s' if len(found) != 1 else ''} written to {output}", err=True)


def _plan(admin: Admin, file: Path, allowed: Collection[Allow]) -> Plan:
    from ottla.operations.topics.applying import check_cluster, live_topics
    from ottla.operations.topics.comparing import diff as compare
    from ottla.operations.topics.reading import read_declaration

    declaration = read_declaration(file)
    brokers = check_cluster(admin, declaration)
    return compare(declaration, live_topics(admin), brokers=brokers, allowed=allowed)


def _refuse_impossible(plan: Plan) -> None:
    """Raise `CommandFailed` for what no command can do, all of it at once."""
    if plan.impossible:
        raise CommandFailed(f"this file cannot be applied, nothing was changed:\n{_changes_table(plan.impossible)}")


def _plan_dict(plan: Plan) -> dict[str, object]:
    return {
        "changes": [change.to_json() for change in plan.changes],
        "unchanged": list(plan.unchanged),
        "undeclared": list(plan.undeclared),
    }


def _plan_text(plan: Plan) -> str:
    lines = [_changes_table(plan.changes)] if plan.changes else []
    parts = [_counts(plan.changes)] if plan.changes else []
    parts.append(f"{len(plan.unchanged):,} unchanged")
    if plan.undeclared:
        shown = ", ".join(plan.undeclared[:_SHOWN])
        more = f" and {len(plan.undeclared) - _SHOWN:,} more" if len(plan.undeclared) > _SHOWN else ""
        parts.append(f"{len(plan.undeclared):,} not declared ({printable(shown + more)})")
    lines.append("; ".join(parts))
    return "\n".join(lines)


def _counts(changes: Collection[Change]) -> str:
    counts = Counter(change.action.value for change in changes)
    return ", ".join(f"{number:,} {action}" for action, number in counts.items())


def _changes_table(changes: Sequence[Change]) -> str:
    rows = [
        (
            change.action.value,
            change.topic,
            change.what,
            _side(change, change.before),
            _side(change, change.after),
            _note(change),
        )
        for change in changes
    ]
    return table(("action", "topic", "what", "before", "after", "note"), rows, width=terminal_width())


def _side(change: Change, value: str | None) -> str:
    from ottla.cli.topics.settings import show_value

    if value is None:
        return ""
    return show_value(change.what, value) if change.what else value


def _note(change: Change) -> str:
    needs = "" if change.needs is None else f"needs {_OPTIONS[change.needs.value]}"
    return "; ".join(text for text in (needs, change.note) if text)


def _done(change: Change) -> str:
    words = {"create": "created", "grow": "grown", "alter": "altered", "unset": "unset", "delete": "deleted"}
    what = f" {change.what}" if change.what else ""
    before = f" from {_side(change, change.before)}" if change.before is not None else ""
    after = f" to {_side(change, change.after)}" if change.after is not None and change.what else ""
    details = f": {change.after}" if change.after is not None and not change.what else ""
    return printable(
        f"{words.get(change.action.value, change.action.value)} {change.topic}{what}{before}{after}{details}"
    )
