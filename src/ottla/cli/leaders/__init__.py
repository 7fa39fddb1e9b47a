"""`ottla leaders`: has the preferred replicas lead."""
