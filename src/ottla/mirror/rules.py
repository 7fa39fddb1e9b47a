"""What a link does about what it finds: stop the partition, or report it and continue.

Findings of a takeover and of acknowledgements come in; errors that end a lane, or events, go out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ottla.errors import ConfigError, MirrorError
from ottla.mirror.lane import Lane
from ottla.mirror.takeover import Fault, Finding
from ottla.model import TopicPartition


class Action(Enum):
    """What to do about a fault."""

    STOP = "stop"
    """End the mirror of this partition with an error. The others go on."""
    CONTINUE = "continue"
    """Report it and go on."""

    @classmethod
    def parse(cls, name: str, value: Action | str) -> Action:
        """Parse a setting. Raises `ConfigError` for anything but `"stop"` and `"continue"`."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}; accepted are 'stop' and 'continue'") from None


_ADVICE = {
    Fault.FOREIGN_WRITER: "find the producer and stop it, or accept it with on_foreign='continue'",
    Fault.NOT_EMPTY: "mirror into a topic of its own, or accept what is there with on_foreign='continue'",
    Fault.TARGET_LOST_RECORDS: "with on_target_lost='continue' the lost records are mirrored again",
    Fault.TARGET_REPLACED: "with on_target_lost='continue' the topic is mirrored again from the start",
    Fault.SOURCE_REPLACED: "with on_lost='continue' the new topic is mirrored behind the old one",
    Fault.UNPROVEN: "compare the topics with an audit; on_target_lost='continue' trusts the offsets",
    Fault.JOURNAL_LOST: "compare the topics with an audit; on_target_lost='continue' mirrors from the start again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a link. Raises `ConfigError` for an invalid one."""

    on_foreign: Action = Action.STOP
    """Records of other producers in a target partition."""
    on_lost: Action = Action.STOP
    """Records that are gone from the source before they were mirrored, or a source topic that was replaced."""
    on_target_lost: Action = Action.STOP
    """A target that lost records or was replaced, or whose journal is gone."""
    patience: float = math.inf
    """Seconds without success after which a partition fails."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Target topics that go first; the default is 0, higher goes first."""

    def __post_init__(self) -> None:
        for name in ("on_foreign", "on_lost", "on_target_lost"):
            object.__setattr__(self, name, Action.parse(name, getattr(self, name)))

    def judge(
        self, source: TopicPartition, target: TopicPartition, findings: Iterable[Finding]
    ) -> tuple[MirrorError, ...]:
        """Return the `findings` that the rules accept.

        Raises the first other one as `MirrorError`, with source and target.
        """
        accepted = []
        for finding in findings:
            is_accepted = self._action_on(finding.fault) is Action.CONTINUE
            what = f"{source} -> {target}: {finding.fault.value}: {finding.detail}"
            error = MirrorError(
                what if is_accepted else f"{what}; {_ADVICE[finding.fault]}",
                source=str(source),
                target=str(target),
                fault=finding.fault.name.lower(),
            )
            if not is_accepted:
                raise error
            accepted.append(error)
        return tuple(accepted)

    def by_priority(self, lanes: Sequence[Lane]) -> Sequence[Lane]:
        """Return the lanes in the order in which they may send."""
        if not self.priorities:
            return lanes
        return sorted(lanes, key=lambda lane: -self.priorities.get(lane.target.topic, 0))

    def _action_on(self, fault: Fault) -> Action:
        match fault:
            case Fault.FOREIGN_WRITER | Fault.NOT_EMPTY:
                return self.on_foreign
            case Fault.SOURCE_REPLACED:
                return self.on_lost
            case _:
                return self.on_target_lost
