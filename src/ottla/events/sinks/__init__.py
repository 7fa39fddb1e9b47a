"""Sinks for events: a log, statsd, Prometheus, files. Each is independent; import them from `ottla.events`."""
