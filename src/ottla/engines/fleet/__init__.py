"""The fleet: offset ranges as units of work that any node can take, coordinated by a store that all nodes share.

`units` has the values and `rules` the transitions between them; both are pure. A store (`redis_store`, `sqlite_store`,
`memory_store`) applies the rules where all nodes see them. On each node a `steward` keeps leases alive, watches the
other nodes (`lease_watch`) and plans (`planner`, `planning`). Workers take units, hand them to the program and report
how they ended (`fleet`, `unit`, `held_units`). `jobs` is an engine on top of this.
"""
