"""A part of `ottla demo`: the topic is mirrored to another cluster, the mirror is killed, and its successor continues.

What the other cluster has at the end is compared with the source by its fingerprint, read without regard to
transactions: a record that was written twice would show.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from ottla.admin import Admin, OffsetSpec
from ottla.cli.errors import CommandFailed
from ottla.errors import OttlaError
from ottla.fetch.reader import Reader
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirrors import mirror
from ottla.model import Fingerprint, Isolation, TopicPartition

_LINK = "edge"
_KILL_SHARE = 0.3
"""The mirror is killed when the target has this share of the records."""
_SECONDS = 60.0
_PAUSE = 0.01
_SHARE_A_SECOND = 0.4
"""How much of the topic the first mirror may copy in a second, so that it can be killed in the middle."""


def mirror_and_kill(
    source: str, target: str, topic: str, *, partitions: int, records: int, say: Callable[[str], None]
) -> Fingerprint:
    """What the other cluster has in the end."""
    say(f"mirroring topic {topic} to the aggregate cluster, batches as they are; the mirror is killed on the way")
    with Reader(source) as reader:
        size = sum(profile.bytes for profile in reader.profile(topic))
    command = [sys.executable, "-m", "ottla.cli.demo.mirror", source, target, topic, str(size * _SHARE_A_SECOND)]
    began = time.monotonic()
    with subprocess.Popen(command) as process:  # noqa: S603  # our own code
        copied = _wait_for(target, topic, partitions, int(records * _KILL_SHARE), process)
        process.kill()
    say(f"  the mirror killed with SIGKILL when about {copied:,} records were there")
    report = mirror(Link(source=source, target=target, topics=topic, name=_LINK))
    recoded = sum(sum(partition.recoded.values()) for partition in report.partitions)
    passed = sum(partition.passed_on for partition in report.partitions)
    say(
        f"  its successor copied {report.records:,} records, {passed} batches as they were, {recoded} encoded again;"
        f" {time.monotonic() - began:.1f} s in all"
    )
    with Reader(target, isolation=Isolation.READ_UNCOMMITTED) as reader:
        return reader.fingerprint(topic)


def _wait_for(bootstrap: str, topic: str, partitions: int, count: int, process: subprocess.Popen[bytes]) -> int:
    """Wait until the topic has this number of offsets; return how many it has."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    deadline = time.monotonic() + _SECONDS
    with Admin(bootstrap) as admin:
        while True:
            try:
                ends = admin.list_offsets(places, OffsetSpec.LATEST, timeout=1.0)
                copied = sum(end.offset for end in ends.values())
            except OttlaError:
                copied = 0  # the topic does not exist yet
            if copied >= count:
                return copied
            if process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"the mirror has copied only {copied:,} records")
            time.sleep(_PAUSE)


if __name__ == "__main__":
    mirror(Link(source=sys.argv[1], target=sys.argv[2], topics=sys.argv[3], name=_LINK, rate=float(sys.argv[4])))
