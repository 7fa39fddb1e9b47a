"""`ottla brokers`: lists brokers, and drains them."""
