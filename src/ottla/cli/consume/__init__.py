"""`ottla consume`: records of topics to standard output or a file."""
