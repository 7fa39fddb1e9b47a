"""Rules: which identity may do what with which topics. Pure. What no rule allows is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from ottla.errors import ConfigError

ANONYMOUS = "anonymous"
"""The identity of a client that has not logged in where no login is needed."""
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]+")


class Verb(Enum):
    """What can be done with a topic."""

    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows identities to do something with topics; both are names or patterns with `*` and `?`."""

    who: tuple[str, ...]
    topics: tuple[str, ...]
    verbs: frozenset[Verb]

    def __post_init__(self) -> None:
        for what, patterns in (("who", self.who), ("topics", self.topics)):
            if not patterns:
                raise ConfigError(f"a rule needs {what}: names or patterns with * and ?")
            for pattern in patterns:
                if not _PATTERN.fullmatch(pattern):
                    raise ConfigError(f"{what} has {pattern!r}: use a-z A-Z 0-9 . _ - * ?")
        if not self.verbs:
            raise ConfigError(f"a rule needs verbs: {', '.join(verb.value for verb in Verb)}")

    def allows(self, identity: str, verb: Verb, topic: str) -> bool:
        """Whether this rule allows it."""
        return (
            verb in self.verbs
            and any(fnmatchcase(identity, pattern) for pattern in self.who)
            and any(fnmatchcase(topic, pattern) for pattern in self.topics)
        )


EVERYTHING = Rule(("*",), ("*",), frozenset(Verb))


def parse_verb(text: str) -> Verb:
    """Return the verb of that name. Raises `ConfigError`."""
    try:
        return Verb(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a verb; accepted are {', '.join(verb.value for verb in Verb)}") from error


def is_allowed(rules: Sequence[Rule], identity: str, verb: Verb, topic: str) -> bool:
    """Whether any rule allows it."""
    return any(rule.allows(identity, verb, topic) for rule in rules)


def is_allowed_somewhere(rules: Sequence[Rule], identity: str, verb: Verb) -> bool:
    """Whether any rule allows it with any topic."""
    return any(verb in rule.verbs and any(fnmatchcase(identity, pattern) for pattern in rule.who) for rule in rules)
