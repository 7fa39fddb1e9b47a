"""The implementation of the fake cluster.

`kafka` is its interface, `dispatch` handles one request, `state`, `groups` and `log` are its data. `apis` has one
module per protocol message, so its listing shows what the fake supports. `server` is the only module that opens sockets
and starts threads. Only the names in `ottla.testing` are public.
"""
