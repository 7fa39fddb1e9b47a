"""The limits of HTTP as one value. Each has a name, and what it causes (an answer, a counter) carries that name."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ottla.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost. Raises `ConfigError` for a limit that is not above 0."""

    head_bytes: int = 16 << 10
    """Request line and headers."""
    head_lines: int = 100
    head_seconds: float = 5.0
    """From the first byte of a request, or the connection, to the end of its headers; also for a TLS handshake."""
    body_bytes: int = 8 << 20
    decoded_bytes: int = 64 << 20
    """A body after gzip or zstd."""
    body_memory_bytes: int = 512 << 20
    """Bodies of all requests together, as they came and decoded."""
    body_seconds: float = 30.0
    """A whole body. Of a stream of records: from one whole record to the next."""
    write_stream_seconds: float = 86_400.0
    """A stream of records that a client writes, as a whole."""
    answer_seconds: float = 30.0
    """How long a client may take to read what was sent to it."""
    idle_seconds: float = 65.0
    """How long a connection may stay open between two requests."""
    connections: int = 1000
    pipelined: int = 100
    """Requests of one connection that wait behind one that is not answered yet."""
    records: int = 50_000
    """Records of one request."""
    record_headers: int = 64
    record_header_bytes: int = 16 << 10
    """Names and values of all headers of one record."""
    batch_entries: int = 1000
    """Entries of a v3 batch."""
    ack_seconds: float = 30.0
    """How long an answer waits for acknowledgements."""
    drain_seconds: float = 30.0
    """How long requests may take to end once the gateway stops."""
    keys: int = 1_000_000
    """Idempotency keys that are remembered."""
    key_seconds: float = 86_400.0
    """How long one of them is remembered."""
    read_bytes: int = 1 << 20
    """Keys and values of one answer, unless the client asks for another size."""
    read_most_bytes: int = 16 << 20
    """What a client may ask for. A single larger record is still read."""
    read_records: int = 10_000
    """Records of one answer."""
    read_wait_seconds: float = 30.0
    """How long a read may wait for records."""
    read_memory_bytes: int = 256 << 20
    """Answers of all readers together that are being read or sent."""
    read_batch_bytes: int = 64 << 20
    """A record batch, after decompression."""
    streams: int = 100
    """Streams of records at once."""
    heartbeat_seconds: float = 15.0
    """How often a stream without records shows that it is alive."""
    consumers: int = 100
    """Consumer instances at once."""
    consumer_idle_seconds: float = 300.0
    """How long an instance may be unused."""
    consumer_bytes: int = 4 << 20
    """What one instance fetches ahead."""
    groups: int = 50
    """Groups at once whose reads are acknowledged."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_whole = not field.name.endswith("_seconds")
            kinds = int if is_whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 40:
                what = "a whole number" if is_whole else "seconds"
                raise ConfigError(f"the limit {field.name} must be {what} above 0, got {value!r}")
