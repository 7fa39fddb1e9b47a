"""The fake cluster from inside: `kafka` is its face, `dispatch` one request's way, `state` and `log` what it knows.

`apis` holds one module per protocol message, so that its listing is the table of what the fake speaks;
`server` is the only module that opens sockets and threads. Nothing here is public but what `ottla.testing`
names.
"""
