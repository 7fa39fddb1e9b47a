"""Whether what a follower handed out and said fits what was in the logs: a story and a world in, complaints out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .following import ANY, Again, Entry, Follower, Handed, Lost, Restarted
from .world import Fate, World, Written


def complaints(world: World, follower: Follower) -> list[str]:
    """All that is wrong; the history is over, and the follower has had all the time it needs."""
    story = list(follower.story)
    return [
        *_invented(world, story),
        *missing(world, follower),
        *(_silently_skipped(world, story) if follower.tells else ()),
        *_repeated(story),
    ]


def _invented(world: World, story: list[Entry]) -> Iterator[str]:
    """Records that were never there, or not at that place."""
    for entry in story:
        if isinstance(entry, Handed):
            written = world.ever.get(entry.value)
            if written is None or (written.partition, written.offset) != (entry.partition, entry.offset):
                yield f"{entry} was never there: {written}"


def missing(world: World, follower: Follower) -> list[str]:
    """Records that are there, and were not handed out."""
    handed = {entry.value for entry in list(follower.story) if isinstance(entry, Handed)}
    excused = set() if follower.follows_cuts else _places_of_the_cut(world)
    return [
        f"{written} is there and was not handed out"
        for written in world.present
        if written.value not in handed and _place(written) not in excused
    ]


def _places_of_the_cut(world: World) -> set[tuple[int, int, int]]:
    """Places that had another record once, before the log was cut back."""
    return {_place(one) for one in world.ever.values() if one.fate is Fate.CUT}


def _place(written: Written) -> tuple[int, int, int]:
    return written.incarnation, written.partition, written.offset


def _silently_skipped(world: World, story: list[Entry]) -> Iterator[str]:
    """Records that went before they were handed out, of a log of which others were, and of which nothing was said."""
    handed = {entry.value for entry in story if isinstance(entry, Handed)}
    begun: dict[tuple[int, int], int] = {}
    for value in handed:
        if value in world.ever:
            one = world.ever[value]
            log = one.incarnation, one.partition
            begun[log] = min(begun.get(log, one.offset), one.offset)
    lost = [entry for entry in story if isinstance(entry, Lost)]
    away = [entry for entry in story if isinstance(entry, Restarted)]
    for written in world.ever.values():
        first = begun.get((written.incarnation, written.partition))
        if written.value in handed or first is None or written.offset < first:
            continue
        if not _may_be_unread(written, lost, away):
            yield f"{written} was passed over in silence"


def _may_be_unread(written: Written, lost: list[Lost], away: list[Restarted]) -> bool:
    said = [one for one in lost if one.partition in (written.partition, ANY)]
    match written.fate:
        case Fate.EXPIRED:
            return any(one.start <= written.offset < one.stop for one in said) or bool(
                # a topic that was found replaced, or a log that was cut, is lost as a whole
                [one for one in said if any(word in one.reason for word in ("created again", "truncated", "cut back"))]
            )
        case Fate.REPLACED:
            return bool(said) or any(one.ended <= written.gone_at <= one.began for one in away)
        case Fate.CUT | Fate.COMPACTED:
            return True
        case Fate.PRESENT:
            return True  # `missing` has it


def _repeated(story: list[Entry]) -> Iterator[str]:
    """Records that came more often than something was said of their partition."""
    times = Counter(entry for entry in story if isinstance(entry, Handed))
    said = Counter(entry.partition for entry in story if isinstance(entry, Lost | Again))
    for entry, count in times.items():
        if count > 1 + said[entry.partition] + said[ANY]:
            yield f"{entry} came {count} times"
