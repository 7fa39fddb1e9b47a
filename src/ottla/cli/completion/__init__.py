"""Completion of command lines in bash, zsh and fish: names of topics, groups, brokers, clusters and profiles."""
