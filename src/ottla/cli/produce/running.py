"""One run of `ottla produce`: from the first line to the last acknowledgement.

Files and a way to make a producer come in; an exit code and counts go out. It prints only through its live line.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping
from ottla.errors import NotDelivered

if TYPE_CHECKING:
    from ottla.cli.produce.ledger import Counts
    from ottla.cli.produce.lines import Block
    from ottla.cli.produce.rows import Format
    from ottla.events.hub import Sink
    from ottla.events.values import Event
    from ottla.produce.producer import Producer

_WAIT_SECONDS = 0.2
_READ_NOTICE = "note: lines of 'ottla consume --json' are sent as values; --format json sends their records"
_STOP_NOTICE = "stopping: delivering what was read; press Ctrl-C again to abort"


@dataclass(frozen=True, slots=True)
class Input:
    """Which files to read, and the format of their lines."""

    files: tuple[str, ...]
    format: Format

    @property
    def size_bytes(self) -> int | None:
        """What there is to read; None if that is not known."""
        if not all(file != "-" and Path(file).is_file() for file in self.files):
            return None
        return sum(Path(file).stat().st_size for file in self.files)


class Run:
    """One run of the command, from the first line to the last acknowledgement."""

    def __init__(
        self,
        make: Callable[[Sink], Producer],
        *,
        max_record_size: int,
        patience: float | None,
        is_typed: bool,
        total: int | None,
    ) -> None:
        from ottla.cli.produce.ledger import Ledger, Shown

        self._limit = f"the limit is {max_record_size:,} (--max-record-size)"
        self._patience = patience
        """With a spool: seconds without a delivery after which the rest stays there."""
        self._moved = 0.0
        self._has_looked = False
        self._producer = make(self._on_event)
        self._live = LiveLine(Shown(lambda: self.counts, total_bytes=total).line, is_shown=not is_typed)
        self._ledger = Ledger(self._producer, max_record_bytes=max_record_size, say=self._live.say)
        self._stopping = Stopping(_STOP_NOTICE)

    @property
    def counts(self) -> Counts:
        """The counts of lines so far."""
        return self._ledger.counts

    def check(self, topic: str, timeout: float) -> None:
        """Raise an error if the brokers or the topic cannot be found, before anything is read."""
        try:
            self._producer.partition_for(topic, timeout=timeout)
        except BaseException as error:
            self._producer.close(0)
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(128 + signal.SIGINT) from error  # nothing was read
            raise

    def all(self, source: Input) -> int:
        """Send everything and return the exit code."""
        self.counts.start()
        with self._live, self._stopping:
            try:
                for file in source.files:
                    if not self._stopping.asked:
                        self._file(file, source.format)
                self._wait()
                self._close(None if self._is_worthwhile() else 0.0)
            except KeyboardInterrupt:
                self._close(0.0)
            self._ledger.end()
        if self._stopping.asked:
            return self._stopping.exit_code
        return 0 if self.counts.is_complete else 1

    def _file(self, file: str, form: Format) -> None:
        from ottla.cli.produce.rows import BadLine

        try:
            for block in self._blocks(file, form):
                self._look_at(block, form)
                for rows in form.rows(block):
                    if isinstance(rows, BadLine):
                        self._ledger.bad(*rows)
                    else:
                        self._ledger.send(rows)
        except OSError as error:
            self._ledger.unreadable(file, str(error.strerror))

    def _look_at(self, block: Block, form: Format) -> None:
        """Say once that the first line is a record of ours where lines are values."""
        from ottla.cli.produce.rows import PlainLines
        from ottla.cli.values.jsonl import is_record_read

        if not self._has_looked and isinstance(form, PlainLines) and is_record_read(block.data.partition(b"\n")[0]):
            self._live.say(_READ_NOTICE)
        self._has_looked = True

    def _blocks(self, file: str, form: Format) -> Iterator[Block]:
        from ottla.cli.produce.lines import TooLong, blocks

        for block in blocks(file, longest_bytes=form.longest_bytes):
            if isinstance(block, TooLong):
                self._ledger.bad(
                    block.source, block.line, f"too long for a record: {block.size_bytes:,} bytes, {self._limit}"
                )
            elif block is not None:
                yield block
            self._ledger.settle()
            if self._stopping.asked:
                return

    def _wait(self) -> None:
        """Wait until all deliveries are settled; with a spool, give up earlier, because records are safe there."""
        self._moved = time.monotonic()
        while self._is_worthwhile() and not (self._stopping.asked and self._patience is not None):
            try:
                self._producer.flush(_WAIT_SECONDS)
                return
            except TimeoutError:
                self._ledger.settle()
            except NotDelivered as error:
                self._ledger.note_failures(error)
                return

    def _is_worthwhile(self) -> bool:
        return self._patience is None or time.monotonic() - self._moved < self._patience

    def _on_event(self, event: Event) -> None:
        from ottla.events.values import FlushAcknowledged

        if isinstance(event, FlushAcknowledged):
            self._moved = time.monotonic()

    def _close(self, timeout: float | None) -> None:
        try:
            self._producer.close(timeout)
        except NotDelivered as error:
            self._ledger.note_failures(error)
