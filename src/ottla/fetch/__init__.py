"""Reading: turns offset ranges into Arrow or raw batches, fetched ahead from all leaders at once.

`Reader` is the entry point. `cursor` knows how far a partition was read and what a response means (pure), `fetcher`
sends the requests, `buffer` bounds the memory between the two, and `bounds` turns "earliest", a time or a group into
offsets.
"""
