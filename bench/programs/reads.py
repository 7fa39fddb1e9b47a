"""Reads a topic with one record."""

import sys

from bench.programs.saying import there
from ottla import Reader

with Reader(sys.argv[1]) as reader:
    found = sum(batch.num_rows for batch in reader.read(sys.argv[2]))
    there(found)
