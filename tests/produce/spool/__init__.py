"""Tests of the spool on disk."""
