"""What may stand at the place of an argument: functions for `shell_complete` of click's parameters.

The context, the parameter and what is typed so far come in, values go out. Importing this module costs nothing; what
asks a cluster is imported when a shell asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ottla.net.cluster import Cluster

GROUP_PREFIX = "group:"
PROFILE_PREFIX = "profile:"
_HIDDEN = ("__", "ottla-")
"""Beginnings of names that are offered once they are typed."""


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the cluster."""
    from ottla.cli.completion.asking import ask

    return _offered(context, parameter, ask(context, _topics), incomplete)


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups of the cluster."""
    from ottla.cli.completion.asking import ask

    return _offered(context, parameter, ask(context, _groups), incomplete)


def complete_group_places(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return `group:NAME` for the groups of the cluster."""
    names = complete_groups(context, parameter, incomplete.removeprefix(GROUP_PREFIX))
    return [GROUP_PREFIX + name for name in names]


def complete_brokers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the brokers of the cluster."""
    from ottla.cli.completion.asking import ask

    return _offered(context, parameter, ask(context, _brokers), incomplete)


def complete_profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the profiles of the settings file."""
    from ottla.cli.profiles.file import read_profiles
    from ottla.errors import ConfigError

    try:
        names = read_profiles(os.environ).by_name
    except ConfigError:
        return []
    return _offered(context, parameter, names, incomplete)


def complete_profile_places(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return `profile:NAME` for the profiles of the settings file."""
    begun = incomplete.removeprefix(PROFILE_PREFIX)
    if begun == incomplete and not PROFILE_PREFIX.startswith(incomplete):
        return []
    names = complete_profiles(context, parameter, "" if begun == incomplete else begun)
    return [PROFILE_PREFIX + name for name in names]


def complete_clusters(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the local clusters."""
    from ottla.cli.completion.local import cluster_names

    return _offered(context, parameter, cluster_names(context.params.get("directory")), incomplete)


def complete_local_brokers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the brokers of a local cluster."""
    from ottla.cli.completion.local import broker_ids

    ids = broker_ids(context.params.get("directory"), context.params.get("name") or "default")
    return _offered(context, parameter, ids, incomplete)


def complete_topic_settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the settings of topics."""
    from ottla.cli.completion.topic_settings import NAMES

    return _offered(context, parameter, NAMES, incomplete)


def complete_topic_pairs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return `NAME=` for the settings of topics, for what takes KEY=VALUE."""
    from click.shell_completion import CompletionItem

    names = complete_topic_settings(context, parameter, incomplete)
    return [CompletionItem(f"{name}=", is_part=True) for name in names]


def _topics(cluster: Cluster) -> Iterable[str]:
    return cluster.metadata(None).topics


def _groups(cluster: Cluster) -> Iterable[str]:
    from ottla.admin.many_groups import list_groups

    brokers = cluster.metadata(()).brokers.values()
    listed, _ = list_groups(cluster, brokers, deadline=cluster.deadline())
    return (group.name for groups in listed.values() for group in groups)


def _brokers(cluster: Cluster) -> Iterable[str]:
    return map(str, sorted(cluster.metadata(()).brokers))


def _offered(context: click.Context, parameter: click.Parameter, names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with what is typed, without those that the command line has already.

    A name that begins with a dash is none of an argument: the command would take it for an option.
    """
    given = context.params.get(parameter.name or "")
    taken = {str(value) for value in given} if isinstance(given, tuple) else set()
    options = "-" if isinstance(parameter, click.Argument) else ()
    fitting = (name for name in names if name.startswith(incomplete) and name not in taken)
    fitting = (name for name in fitting if not name.startswith(options))
    is_hidden_wanted = incomplete.startswith(("_", "ottla"))
    return sorted(
        (name for name in fitting if is_hidden_wanted or not name.startswith(_HIDDEN)),
        key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name),
    )
