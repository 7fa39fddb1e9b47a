"""`ottla health`: whether a cluster is healthy, why not, and a probe through every broker."""
