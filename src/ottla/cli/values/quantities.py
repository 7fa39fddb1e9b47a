"""Durations and sizes on the command line, written as everywhere: see `ottla.quantities`."""

from ottla.quantities import DURATIONS, SIZES, parse_duration, parse_size, show_duration, show_size

__all__ = ["DURATIONS", "SIZES", "parse_duration", "parse_size", "show_duration", "show_size"]
