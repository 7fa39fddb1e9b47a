"""The first query of a Spark session: a topic with one record, by our source or by Spark's own connector."""

import sys
import time
from importlib import import_module

from bench.peers.spark import Job
from bench.programs.saying import there

peer, bootstrap, topic = sys.argv[1:]
module = import_module(f"bench.peers.spark.{peer}")
job = Job(bootstrap=bootstrap, topic=topic, records=1, record_bytes=3, folder="", small_topic=topic, small_records=1)
module._session()
began = time.perf_counter()
found = len(module._topic(job).collect())
there(found, seconds=time.perf_counter() - began)
module._session().stop()
