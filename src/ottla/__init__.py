"""Ottla: move Kafka data at wire speed from Python, and prove that none was lost."""

from __future__ import annotations

__version__ = "0.1.0"
