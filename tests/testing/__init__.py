"""Tests of the fake broker and the pytest fixtures."""
