"""How `ottla consume` and `ottla query` work: out of a source, through the selection, into an output."""
