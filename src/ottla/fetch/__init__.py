"""Reading: offset ranges become Arrow or raw batches, fetched ahead from all leaders at once.

`Reader` is the entrance. `cursor` says how far a partition is read and what an answer means (pure), `fetcher` is the
thread that asks, `buffer` the bounded memory between the two, `places` turns what people say into offsets.
"""
