"""Tests of `ottla.wire`, without a broker."""
