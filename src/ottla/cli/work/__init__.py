"""`ottla work`: a function on all records of topics, on a fleet of nodes."""
