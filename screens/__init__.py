"""Pictures of what commands show on a terminal: real commands, on a real cluster, in a pseudo terminal."""
