"""The options of every command that administers a cluster; the command gets an open `admin: Admin`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import timeout_option
from ottla.cli.options.security import security_options

if TYPE_CHECKING:
    from ottla.config import Retry, Security


def few_retries() -> Retry:
    """Return the retries of a command: a wrong address or listener fails after a few attempts."""
    from ottla.config import Retry

    return Retry(first_contact=4)


def require_brokers(bootstrap: str, security: Security, *, timeout: float) -> None:
    """Connect once, so that a wrong address fails soon in a command that later waits patiently for brokers."""
    from ottla.config import Timeouts
    from ottla.net import Cluster

    with Cluster(bootstrap, security=security, timeouts=Timeouts(total=timeout), retry=few_retries()) as cluster:
        cluster.metadata([])


_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_admin(command: _Command) -> _Command:
    """Give a command the options of a connection, and the argument `admin: Admin`, open while it runs."""
    from ottla.config import Timeouts

    @functools.wraps(command)
    def connected(*args: Any, bootstrap: str, security: Security, timeout: float, **given: Any) -> Any:
        from ottla.admin import Admin

        with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout), retry=few_retries()) as admin:
            return command(*args, admin=admin, **given)

    wrapped: Any = bootstrap_option(security_options(timeout_option()(connected)))
    decorated: _Command = wrapped
    return decorated
