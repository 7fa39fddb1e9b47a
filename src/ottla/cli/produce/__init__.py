"""`ottla produce`: lines of files or standard input to a topic."""
