"""Mirrors partitions from one cluster to another, batch by batch and exactly once.

`pump.py` runs it: it fetches raw batches (`ottla.fetch`), and `forwarder.py` sends them on under a producer id of the
link. `lane.py` has the rules of one partition, `takeover.py` those of continuing after a crash, `terms.py` the map of
offsets, `journal.py` keeps it. A mirror decodes a batch only if the target would refuse it (`passage.py`, `recode.py`).
"""
