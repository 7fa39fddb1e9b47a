"""How many brokers, disks, partitions and cores a load needs, from rules and rates. Values in, a plan out.

`sheet.py` computes what it shows; `cluster.py` has the rules for one cluster, `plan.py` puts clusters and clients
together, `what_if.py` varies a plan. Only `measure.py` asks brokers. Nothing here prints.
"""
