"""The threads in which the pumps of a link run."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ottla.mirror.pump import Pump


class PumpThreads:
    """The threads of the pumps. `with` stops them and raises the error of one that crashed."""

    def __init__(self, pumps: Mapping[str, Pump], *, follow: bool) -> None:
        self._pumps = pumps
        self._follow = follow
        self._threads: dict[str, threading.Thread] = {}
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._errors: list[BaseException] = []

    def __enter__(self) -> PumpThreads:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads.values():
            thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    @property
    def are_running(self) -> bool:
        """Whether a pump is still at work."""
        return any(thread.is_alive() for thread in self._threads.values())

    def start(self) -> None:
        """Start the pumps that have no thread yet."""
        for name, pump in list(self._pumps.items()):
            if name not in self._threads:
                thread = threading.Thread(target=self._run, args=(pump,), name=f"ottla-mirror-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def wait(self, seconds: float) -> None:
        """Block for a while, or until a pump ends."""
        self._ended.wait(seconds)
        self._ended.clear()

    def _run(self, pump: Pump) -> None:
        try:
            pump.run(self._stopped.is_set, follow=self._follow)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._ended.set()
