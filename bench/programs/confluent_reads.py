"""Reads the only record of a topic with confluent-kafka."""

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.programs.saying import there

consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "start", "enable.auto.commit": False})
consumer.assign([TopicPartition(sys.argv[2], 0, OFFSET_BEGINNING)])
message = consumer.poll(30.0)
there(1 if message is not None and message.error() is None else 0)
consumer.close()
