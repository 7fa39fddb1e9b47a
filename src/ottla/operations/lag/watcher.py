"""Polls a cluster again and again, and hands each snapshot on: to readers in memory, a history, and a webhook.

A poller and an evaluator come in; `latest` goes out, whole, for any thread. A poll that fails leaves the last snapshot
in place, whose age shows, and the next poll tries again. Posting runs on a thread of its own: a webhook that is slow
delays no poll, and what it did not accept is posted again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ottla.errors import OttlaError
from ottla.net.waiting import Flag
from ottla.operations.lag.changes import Change, Hysteresis
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.history import QUIET_SECONDS, History, sample_of
from ottla.operations.lag.poller import Poller
from ottla.operations.lag.values import GroupSample, Snapshot
from ottla.operations.webhook import WebhookFailed, check_url, post

_MOST_WAITING = 1_000
_RETRY_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Watcher:
    """Has `poller` poll every `every` seconds and `evaluator` judge.

    `look` polls once; `run` polls until `stop` is set. `others` returns what is no group. Looks are stored in
    `history`, which is read for `window_seconds` at the start. `on_changes` is called with changes of states that
    `hysteresis` lets through.
    """

    def __init__(
        self,
        poller: Poller,
        evaluator: Evaluator,
        *,
        every: float,
        others: Callable[[], Sequence[GroupSample]] | None = None,
        history: History | None = None,
        window_seconds: float | None = None,
        hysteresis: Hysteresis | None = None,
        on_changes: Callable[[Snapshot, Sequence[Change]], None] | None = None,
    ) -> None:
        self._poller = poller
        self._evaluator = evaluator
        self._every = every
        self._others = others
        self._history = history
        self._restore_seconds = window_seconds
        self._hysteresis = hysteresis or Hysteresis()
        self._on_changes = on_changes
        self._latest: Snapshot | None = None

    def latest(self) -> Snapshot | None:
        """Return the last snapshot, None before the first."""
        return self._latest

    def look(self) -> Snapshot:
        """Poll once. Raises the poller's errors."""
        sample = self._poller.poll(others=self._others)
        if self._history is not None and self._restore_seconds is not None:
            self._restore(self._history, sample.cluster, sample.at - self._restore_seconds)
            self._restore_seconds = None
        snapshot = self._evaluator.observe(sample, missing=self._poller.missing)
        self._latest = snapshot
        changes = self._hysteresis.observe(snapshot.groups, snapshot.at)
        if changes and self._on_changes is not None:
            self._on_changes(snapshot, changes)
        if self._history is not None:
            try:
                self._history.add(snapshot)
            except OttlaError as error:
                _log.warning("%s", error)
        return snapshot

    def run(self, stop: Flag) -> None:
        """Poll until `stop` is set."""
        due = time.monotonic()
        while not stop.is_set():
            try:
                self.look()
            except OttlaError as error:
                _log.warning("cannot poll: %s", error)
            due = max(due + self._every, time.monotonic())
            stop.wait(due - time.monotonic())

    def _restore(self, history: History, cluster: str, window_start: float) -> None:
        """Continue from what an earlier process saw and told."""
        try:
            # What stands still was stored up to so long before the window.
            for key, commits in history.commits(cluster, window_start - QUIET_SECONDS).items():
                self._evaluator.restore(sample_of(key), commits, window_start=window_start)
            self._hysteresis.begin_with(history.told(cluster))
        except OttlaError as error:
            _log.warning("%s", error)


class _Post(NamedTuple):
    content: dict[str, Any]
    cluster: str
    changes: tuple[Change, ...]


class Poster:
    """Posts changes to a webhook, in order, on its own thread while the block runs.

    `accepted` is called on that thread with the cluster and the changes of each post that was accepted.
    """

    def __init__(
        self,
        url: str,
        *,
        send: Callable[[str, dict[str, Any]], None] = post,
        accepted: Callable[[str, Sequence[Change]], None] | None = None,
    ) -> None:
        """Raises `ConfigError` for an address that is none."""
        self._url = check_url(url)
        self._send = send
        self._accepted = accepted
        self._waiting: list[_Post] = []
        self._condition = threading.Condition()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="ottla-lag-webhook", daemon=True)

    def __enter__(self) -> Poster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._is_ending = True
            self._condition.notify()
        self._thread.join(_RETRY_SECONDS)

    def add(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Post changes soon. While the webhook does not answer, the last thousand posts wait."""
        content = {
            "cluster": snapshot.cluster,
            "polled_at": round(snapshot.at, 3),
            "changes": [change.to_json() for change in changes],
        }
        with self._condition:
            self._waiting.append(_Post(content, snapshot.cluster, tuple(changes)))
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[0]
                _log.warning("the webhook accepts nothing: the oldest change was given up")
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._is_ending:
                    self._condition.wait()
                if not self._waiting:
                    return
                waiting = self._waiting[0]
            try:
                self._send(self._url, waiting.content)
            except WebhookFailed as error:
                _log.warning("%s; posted again in %d s", error, _RETRY_SECONDS)
                with self._condition:
                    if self._is_ending or (self._condition.wait(_RETRY_SECONDS) and self._is_ending):
                        return
                continue
            self._note(waiting)
            with self._condition:
                if self._waiting and self._waiting[0] is waiting:
                    del self._waiting[0]

    def _note(self, posted: _Post) -> None:
        try:
            if self._accepted is not None:
                self._accepted(posted.cluster, posted.changes)
        except OttlaError as error:
            _log.warning("%s", error)
