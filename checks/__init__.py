"""Checks of `make check` that no linter has: sizes of modules and classes, and words that do not come back."""
