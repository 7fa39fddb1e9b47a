"""A node of a fleet as a follower: units of its plan, handled by a thread of its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from ottla import Charter, Fleet, Unit, Units
from ottla.events import Event, PositionMisplaced, RangeLost, StoreWentBack, TopicReplaced, UnitEnded, UnitReclaimed
from ottla.model import TopicPartition

from .following import ANY, RETRY, SMALL, TIMES, Again, Entry, Lost, Restarted, Story
from .world import World


class FollowsInFleet:
    """`Fleet.run` with `on_lost="earliest"`: what a handler got counts when its unit is done."""

    follows_cuts = False
    tells = True

    def __init__(self, world: World, group: str, store: str) -> None:
        self.story: list[Entry] = Story()
        self._world = world
        self._group = group
        self._store = store
        self._failed: list[BaseException] = []
        self._begin()

    def step(self) -> None:
        """It works by itself."""
        threading.Event().wait(0.02)
        if self._failed:
            raise self._failed[0]

    def position(self, partition: int) -> int | None:
        """Up to where everything is done, as the store says."""
        states = {state.partition: state for state in self._fleet.look().partitions}
        state = states.get(TopicPartition(self._world.topic, partition))
        return None if state is None else state.done

    def restart(self, meanwhile: Any = None) -> None:
        """The node leaves, and another one comes."""
        ended = self._world.clock
        self.close()
        if meanwhile is not None:
            meanwhile()
        self.story.append(Restarted(ended, self._world.clock))
        self._begin()

    def close(self) -> None:
        """What is not done goes back."""
        self._fleet.close()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the node does not end"

    @property
    def committed(self) -> dict[int, int] | None:
        """By the group that the positions are committed to."""
        return self._world.committed(f"{self._group}-told")

    def _begin(self) -> None:
        self._fleet = Fleet(
            self._world.bootstrap,
            group=self._group,
            topics=self._world.topic,
            store=self._store,
            start="earliest",
            on_lost="earliest",
            units=Units(records=10),
            charter=Charter(max_attempts=50, lease_seconds=5.0),
            commit_group=f"{self._group}-told",
            fetching=SMALL,
            timeouts=replace(TIMES, total=3.0),  # for so long a unit waits for offsets that were cut off
            retry=RETRY,
            events=[self._hear],
        )
        self._thread = threading.Thread(target=self._work, args=(self._fleet,), name="history-fleet", daemon=True)
        self._thread.start()

    def _work(self, fleet: Fleet) -> None:
        try:
            fleet.run(self._handle)
        except BaseException as error:
            self._failed.append(error)

    def _handle(self, unit: Unit) -> None:
        table = unit.table()
        assert isinstance(self.story, Story)
        for batch in table.to_batches():
            self.story.batch(batch)

    def _hear(self, event: Event) -> None:
        match event:
            case RangeLost():
                self.story.append(Lost(event.partition, event.start, event.stop, event.resume, event.reason))
            case PositionMisplaced():
                reason = "the log was cut back" if event.position > event.stop else event.reason
                self.story.append(Lost(event.partition, event.position, event.start, event.resume, reason))
            case TopicReplaced():
                self.story.append(Lost(ANY, 0, 0, 0, "created again"))
            case UnitReclaimed():
                self.story.append(Again(event.partition, f"{event}"))
            case UnitEnded() if event.status != "done":
                self.story.append(Again(event.partition, f"{event}"))
            case StoreWentBack():
                self.story.append(Again(ANY, f"{event}"))
