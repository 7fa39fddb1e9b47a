"""Sends one record with confluent-kafka and waits for it."""

import sys

from confluent_kafka import Producer

from bench.programs.saying import there

producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "linger.ms": 0})
producer.produce(sys.argv[2], b"one")
there(1 if producer.flush(30.0) == 0 else 0)
