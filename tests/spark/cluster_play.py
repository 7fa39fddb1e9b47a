"""A program with source, sink and replay, for any master: `python -m tests.spark.cluster_play SETTINGS`.

Prints as JSON what it found, on its last line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ottla
import ottla.spark
from ottla.engines import spark as engine
from ottla.jobs.replay_partition import Target
from ottla.jobs.replay_plan import plan
from ottla.jobs.replay_source import Selection, open_source
from ottla.jobs.replay_throttle import ReplayControl
from ottla.net.access import ClusterAccess


def main(settings: dict[str, Any]) -> None:
    bootstrap, source = settings["bootstrap"], settings["source"]
    brokers = {"kafka.bootstrap.servers": bootstrap}
    spark = ottla.spark.session("cluster", master=settings["master"], conf=settings["conf"])
    frame = spark.read.format("ottla").options(**brokers, subscribe=source).load()
    results = {"first": frame.count(), "filtered": frame.where("partition = 0").count()}
    with ottla.Producer(bootstrap) as producer:
        for number in range(settings["more"]):
            producer.send(source, b"later %d" % number, key=b"%d" % number)
    results["later"] = frame.count()
    rows = frame.select("key", "value").repartition(3)
    rows.write.format("ottla").options(**brokers, topic=settings["written"]).mode("append").save()
    stream = spark.readStream.format("ottla").options(**brokers, subscribe=source, startingOffsets="earliest")
    query = (
        stream.options(maxOffsetsPerTrigger="700")
        .load()
        .select("key", "value")
        .writeStream.format("ottla")
        .options(**brokers, topic=settings["streamed"], checkpointLocation=settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    target = Target(access=ClusterAccess(bootstrap=bootstrap), topic=settings["replayed"])
    planned = plan(open_source(settings["archive"]), Selection(), target)
    results["replayed"] = len(list(engine.run(planned.job(ReplayControl()), planned.ranges, spark=spark)))
    results["machines"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
