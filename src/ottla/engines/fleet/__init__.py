"""The fleet: offset ranges as units of work that any node can take, coordinated by a store that all nodes share.

`units` are the values and `rules` what may happen to them, both pure. A store (`redis_store`, `sqlite_store`) applies
the rules where all nodes see them. On each node a steward plans and watches (`steward`, `planning`, `watching`), and
workers take units, hand them out and say what became of them (`fleet`, `unit`, `holding`).
"""
