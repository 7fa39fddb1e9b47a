"""Ways to look at the lag of many groups: what is asked of a process, and how it asks the cluster."""
