"""Operating a cluster."""
