"""The parts of `ottla work`: handlers, running them here or in child processes, looking at a group, changing it."""
