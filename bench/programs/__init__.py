"""Whole programs whose start is measured: each is run by its path, in a new process, and says when it is there.

A program prints one line of JSON: what it found, if it was to find something, and the most memory it has used.
"""
