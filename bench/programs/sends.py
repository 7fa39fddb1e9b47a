"""Sends one record and waits for it."""

import sys

from bench.programs.saying import there
from ottla import Producer

with Producer(sys.argv[1]) as producer:
    producer.send(sys.argv[2], b"one").result(30.0)
    there(1)
