"""Fixtures of the tests of the package."""

from tests.package.environments import bare, wheel, with_cluster

__all__ = ["bare", "wheel", "with_cluster"]
