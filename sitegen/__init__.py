"""What builds the documentation site beside mkdocs: generated pages, links out of `docs/`, pictures, a check of the result."""
