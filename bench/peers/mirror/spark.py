"""Our mirror as a Spark job with two tasks. The session has run another job before, so that its workers are warm."""

from __future__ import annotations

from dataclasses import replace

from bench.peers.mirror import Job
from bench.peers.mirror.ottla import link_of
from bench.peers.spark import MASTER_AND_MEMORY
from ottla.jobs.mirrors import mirror
from ottla.spark import session


def run(job: Job) -> None:
    """Copy everything that is there."""
    spark = session("mirror", conf=MASTER_AND_MEMORY)
    warm = replace(job, topic=f"{job.topic}-small", prefix=f"{job.prefix}-warm")
    mirror(link_of(warm), engine="spark", spark=spark)
    mirror(link_of(job), engine="spark", spark=spark)
    spark.stop()
