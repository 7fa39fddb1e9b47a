"""The jars of Spark's own Kafka connector, pinned: what tests and benchmarks compare the source `ottla` with."""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.jars import JarCache
from ottla.cluster.local import default_cache_dir
from ottla.cluster.pinned import Jar

_JARS = (
    Jar(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        494879,
    ),
    Jar(
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        64975,
    ),
    Jar(
        "org.apache.kafka:kafka-clients:3.9.1",
        "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
        9215194,
    ),
    Jar(
        "org.apache.commons:commons-pool2:2.12.1",
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
        152289,
    ),
)


def connector_jars() -> tuple[Path, ...]:
    """For `spark.jars`; fetched once into the cache that local clusters use."""
    return JarCache(default_cache_dir() / "spark-kafka-4.2.0", _JARS).ensure()
