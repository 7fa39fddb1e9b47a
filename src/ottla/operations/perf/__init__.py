"""Performance tests: produce, consume, mirror and the latency between them, measured on a running cluster.

A `Workload` comes in, a `Measured` goes out. `histogram.py`, `pace.py`, `workload.py` and `report.py` are pure;
`meter.py` is shared by threads; the others drive clients. Nothing here prints.
"""
