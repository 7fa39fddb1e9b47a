"""A handler that keeps what arrived, for tests of receivers."""

from __future__ import annotations

import threading

from ottla.gateway.receiving.arrivals import Arrivals


class Recording:
    """Messages in the order of their arrival, with their marks and sources. `gate` makes it wait."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, int, str]] = []
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, arrivals: Arrivals) -> None:
        self.gate.wait()
        self.calls += 1
        for number, (_, _, mark) in enumerate(arrivals.spans.tolist()):
            source = arrivals.sources[int(arrivals.source_of[number])]
            self.messages.append((arrivals.content(number), mark, source))

    @property
    def contents(self) -> list[bytes]:
        return [content for content, _, _ in self.messages]
