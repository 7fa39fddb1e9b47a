"""`ottla lag`: the lag of everything that reads a cluster, on the terminal, over HTTP and as metrics."""
