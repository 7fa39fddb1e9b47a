"""Operating a cluster: lag, health, moves of replicas, capacity, performance tests, declared topics.

Each package has a pure core that judges or plans, and a thin driver that asks brokers and carries plans out. Nothing
here prints; `ottla.cli` does.
"""
