"""The fields of many syslog messages, found by one kernel call.

`Arrivals` come in, a table goes out, with a row for each message that is not empty. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.gateway.assembling import Pieces
from ottla.gateway.receiving.arrivals import Arrivals
from ottla.wire.kernels import framing
from ottla.wire.kernels import syslog as k

Numbers = npt.NDArray[np.int64]

HOST, APP, PROCID, MSGID, DATA, MESSAGE, WHOLE = range(7)
"""The texts of a message."""
_PLACES = {
    HOST: (k.HOST, k.HOST_STOP),
    APP: (k.APP, k.APP_STOP),
    PROCID: (k.PROCID, k.PROCID_STOP),
    MSGID: (k.MSGID, k.MSGID_STOP),
    DATA: (k.DATA, k.DATA_STOP),
    MESSAGE: (k.MESSAGE, k.STOP),
    WHOLE: (k.START, k.STOP),
}
ERROR_NAMES = {
    framing.WHOLE: "",
    framing.TRUNCATED: "truncated",
    framing.CUT: "cut",
    framing.DESYNCHRONISED: "framing",
    k.NO_PRIORITY: "no-priority",
    k.BAD_PRIORITY: "priority",
    k.BAD_VERSION: "version",
    k.BAD_TIME: "time",
    k.BAD_HEADER: "header",
    k.BAD_DATA: "structured-data",
}
"""What the header `syslog.error` says, by the code in the table."""


class Parsed(NamedTuple):
    """Messages with their fields. `table` has the columns of `wire.kernels.syslog`."""

    arrivals: Arrivals
    table: Numbers
    source_of: Numbers

    def pieces(self, text: int, rows: Numbers | None = None) -> Pieces:
        """Return where a text is in each row; it is missing where it is empty, but for the message as a whole."""
        start, stop = _PLACES[text]
        starts = self.column(start, rows)
        sizes = self.column(stop, rows) - starts
        if text not in (WHOLE, MESSAGE):
            sizes = np.where(sizes == 0, -1, sizes)
        return Pieces(starts, sizes)

    def column(self, number: int, rows: Numbers | None = None) -> Numbers:
        """Return one column of the table, or of some rows of it."""
        return self.table[:, number] if rows is None else self.table[rows, number]

    def text(self, text: int, row: int) -> bytes:
        """Return one text of one row."""
        start, stop = (int(self.table[row, column]) for column in _PLACES[text])
        return self.arrivals.data[start:stop].tobytes()


def parse(arrivals: Arrivals, clock: Numbers) -> Parsed:
    """Parse all messages. Empty ones are left out."""
    table: Any = np.empty((len(arrivals), k.ROW_FIELDS), np.int64)
    if k.parse_syslog(arrivals.data, arrivals.spans, clock, table) != len(arrivals):
        raise ValueError("a message lies outside the memory that it came in")
    is_full = table[:, k.STOP] > table[:, k.START]
    if is_full.all():
        return Parsed(arrivals, table, arrivals.source_of)
    return Parsed(arrivals, table[is_full], arrivals.source_of[is_full])
