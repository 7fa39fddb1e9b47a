"""The documentation site: `make docs`.

`python -m sitegen` writes all pages as plain files, which mkdocs then builds: those of `docs/`, those that are made
from commands, and those whose source is elsewhere. `built` checks the result. Only `names` depends on what builds
the site, so that another builder can take its place.
"""
