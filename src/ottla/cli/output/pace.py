"""How fast something moves, and for how long still: from amounts that are looked at again and again.

Times and amounts come in, a rate, the time left and a history for a sparkline go out. It reads no clock. Pure.
"""

from __future__ import annotations

from collections import deque

from ottla.cli.output.bars import bar, clock, sparkline

_WINDOW_SECONDS = 5.0
_HISTORY = 60
_SPARKS = 20
_LEAST_SECONDS = 0.2
"""What was observed for a shorter time says nothing about a rate."""


class Pace:
    """Looks at an amount that grows. One thread uses it."""

    def __init__(self, *, window: float = _WINDOW_SECONDS, step: float = 1.0) -> None:
        self._window = window
        self._step = step
        self._samples: deque[tuple[float, float]] = deque()
        self._steps: deque[float] = deque(maxlen=_HISTORY)
        self._step_began: tuple[float, float] | None = None

    def observe(self, now: float, amount: float) -> None:
        """Note an amount. One that is smaller than the last begins a new count."""
        if self._samples and amount < self._samples[-1][1]:
            self._samples.clear()
            self._step_began = None
        self._samples.append((now, amount))
        # The sample before the window stays: the window begins between it and the next one.
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()
        if self._step_began is None:
            self._step_began = (now, amount)
        elif now - self._step_began[0] >= self._step:
            self._steps.append((amount - self._step_began[1]) / (now - self._step_began[0]))
            self._step_began = (now, amount)

    @property
    def amount(self) -> float:
        """What was observed last."""
        return self._samples[-1][1] if self._samples else 0.0

    @property
    def rate(self) -> float:
        """The amount per second over the last seconds; 0 before anything moved."""
        if not self._samples:
            return 0.0
        (since, first), (now, last) = self._samples[0], self._samples[-1]
        return (last - first) / (now - since) if now - since >= _LEAST_SECONDS else 0.0

    @property
    def history(self) -> tuple[float, ...]:
        """The rates of the last steps of time, the newest at the end."""
        return tuple(self._steps)

    def seconds_left(self, total: float) -> float | None:
        """Return how long the rest takes at this rate; None if nothing moves."""
        if not self._samples or self.rate <= 0:
            return None
        return max(0.0, total - self.amount) / self.rate


def progress_line(*parts: str, pace: Pace, total: float | None = None) -> str:
    """Return a line about work that runs: a bar, the parts that are not empty, and the time left.

    Work without an end has a sparkline of its rates instead of the bar.
    """
    left = None if total is None else pace.seconds_left(total)
    texts = [part for part in parts if part]
    if left is not None and total is not None and pace.amount < total:
        texts.append(f"{clock(left)} left")
    head = sparkline(pace.history, width=_SPARKS) if total is None else bar(pace.amount / total if total > 0 else 1.0)
    return f"{head}  {', '.join(texts)}" if head else ", ".join(texts)


def records_rate(pace: Pace) -> str:
    """Return `12,345 records/s`; empty before anything moved."""
    return f"{pace.rate:,.0f} records/s" if pace.rate else ""


def bytes_rate(pace: Pace) -> str:
    """Return `12.3 MB/s`; empty before anything moved."""
    return f"{pace.rate / 1e6:,.1f} MB/s" if pace.rate else ""
