"""Gives a batch another identity: base offset, leader epoch, producer id, epoch, sequence, attributes.

Comes in: the header of a batch, received or new. Goes out: the header to send instead, with its checksum. The records
must be neither read nor copied. Base offset and leader epoch lie outside the checksum; for the other fields it is
adjusted by the change alone, so a batch that was damaged before still has a wrong checksum afterwards.
"""

from __future__ import annotations

from ottla.wire.batch import CRC_START, HEADER_BYTES, BatchHeader, pack_header
from ottla.wire.checksums import crc32c
from ottla.wire.kernels.checksum import shift


def restamp(
    header: BatchHeader,
    *,
    base_offset: int | None = None,
    leader_epoch: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
    attributes: int | None = None,
) -> BatchHeader:
    """Return the header with the given fields replaced and a matching checksum."""
    changes = {
        "base_offset": base_offset,
        "leader_epoch": leader_epoch,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "attributes": attributes,
    }
    stamped = header._replace(**{name: value for name, value in changes.items() if value is not None})
    before, after = pack_header(header)[CRC_START:], pack_header(stamped)[CRC_START:]
    if before == after:
        return stamped
    difference = crc32c(before) ^ crc32c(after)
    return stamped._replace(crc=header.crc ^ shift(difference, header.size_bytes - HEADER_BYTES))
