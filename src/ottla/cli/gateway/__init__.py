"""`ottla gateway`: takes records over HTTP and from sockets of this machine, and hands them to Kafka."""
