"""Engines run a job over offset ranges: in threads of this process (`local`), as Spark tasks (`spark`) or on the nodes
of a fleet (`fleet.jobs`).

`contract` says what engines and jobs expect of each other. No engine knows what a job does.
"""
