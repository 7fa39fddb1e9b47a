"""`ottla demo`: the whole of Ottla on real brokers in a minute."""
