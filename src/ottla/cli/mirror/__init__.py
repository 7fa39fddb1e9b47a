"""`ottla mirror`: copies topics to another cluster, and shows, checks and translates what it does."""
