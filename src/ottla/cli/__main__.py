"""`python -m ottla.cli`: the same as the `ottla` script."""

from __future__ import annotations

from ottla.cli.root import main

main()
