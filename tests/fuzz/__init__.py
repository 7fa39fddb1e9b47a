"""Fuzzing of the wire: hostile bytes in, and the same result from every way of running the kernels.

`inputs` makes them from a seed, `areas` gives kernels memory that notices a stray access, `drive` runs one input,
`worker` runs many in a process of its own, `layers` starts the workers and compares what they say. `guided` lets
coverage of the Python bodies choose inputs. `python -m tests.fuzz --help` is the long run.
"""
