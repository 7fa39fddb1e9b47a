"""MirrorMaker 2 of Apache Kafka, with its own jars, tuned for throughput. This process becomes its JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench.peers.mirror import Job
from ottla.cluster.jars import JarCache
from ottla.cluster.java import find_java
from ottla.cluster.local import default_cache_dir
from ottla.cluster.pinned import Jar

VERSION = "4.3.1"
_LIST = Path(__file__).with_name(f"mirrormaker-{VERSION}.json")
_OPTIONS = ("-Xmx2g", "-Xms2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


def jars() -> tuple[Path, ...]:
    """Its class path; downloaded once."""
    rows = json.loads(_LIST.read_text())["jars"]
    pinned = tuple(Jar(row["coordinates"], row["sha256"], row["bytes"]) for row in rows)
    return JarCache(default_cache_dir() / f"mirrormaker-{VERSION}", pinned).ensure()


def run(job: Job) -> None:
    """Copy until it is ended."""
    settings = Path(job.folder) / f"{job.prefix}.properties"
    settings.write_text("\n".join(f"{name}={value}" for name, value in properties(job).items()) + "\n")
    class_path = ":".join(map(str, jars()))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    java = str(find_java(os.environ))
    os.execv(java, [java, *_OPTIONS, "-cp", class_path, main, str(settings)])


def properties(job: Job) -> dict[str, object]:
    """Large fetches and batches, two tasks, and nothing beside the copying."""
    link = {
        "enabled": "true",
        "topics": job.topic,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "refresh.topics.enabled": "false",
        "refresh.groups.enabled": "false",
    }
    names = {f"{job.prefix}->target.{name}": value for name, value in link.items()}
    producer = {
        "batch.size": 1_000_000,
        "linger.ms": 50,
        "buffer.memory": 256 << 20,
        "compression.type": job.codec,
        "acks": "all",
        "max.request.size": 16 << 20,
    }
    consumer = {
        "fetch.max.bytes": 64 << 20,
        "max.partition.fetch.bytes": 16 << 20,
        "max.poll.records": 20_000,
        "receive.buffer.bytes": 4 << 20,
        "auto.offset.reset": "earliest",
    }
    return {
        "clusters": f"{job.prefix},target",
        f"{job.prefix}.bootstrap.servers": job.source,
        "target.bootstrap.servers": job.target,
        "tasks.max": 2,
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "offset-syncs.topic.location": "target",
        "config.storage.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "offset.flush.interval.ms": 10_000,
        "dedicated.mode.enable.internal.rest": "false",
        **{f"target.producer.{name}": value for name, value in producer.items()},
        **{f"{job.prefix}.consumer.{name}": value for name, value in consumer.items()},
        **{f"producer.override.{name}": value for name, value in producer.items()},
        **{f"{job.prefix}->target.producer.override.{name}": value for name, value in producer.items()},
        **{f"{job.prefix}->target.consumer.{name}": value for name, value in consumer.items()},
        **names,
    }
