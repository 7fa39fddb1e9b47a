"""Where events go: a log, statsd, Prometheus, a file. Each stands alone; `ottla.events` gives out their names."""
