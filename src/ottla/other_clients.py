"""What the settings of other clients are called here, for the errors of unknown keyword arguments.

The name of a class and an unknown name come in, a hint goes out. `names_checked` wraps a constructor, so that an
unknown name is a `ConfigError` with that hint. Nothing is renamed silently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ottla.errors import ConfigError

_Constructor = TypeVar("_Constructor", bound=Callable[..., None])

_BOOTSTRAP = "the addresses of brokers are the first argument"
_SECURITY = "it is security=Security(tls=Tls(...), sasl=...)"
_TIMEOUTS = "it is timeouts=Timeouts(request=..., connect=..., total=...), in seconds"
_RETRY = "it is retry=Retry(initial=..., maximum=...), in seconds"
_SERIALIZER = "there are no serializers: encode before the call; text is sent as UTF-8"
_DESERIALIZER = "there are no deserializers: keys and values are bytes"
_BATCH_BYTES = "it is batching=Batching(bytes=...)"
_LINGER = "it is batching=Batching(linger=...), in seconds"
_BUFFERING = "it is buffering=Buffering(bytes=..., wait=...)"
_RECORD_BYTES = "it is max_record_bytes=..., of one record"
_IN_FLIGHT = "there is none: up to 5 batches of a partition are in flight, in order"
_CALLBACK = "it is on_failed=... for what failed, or send(...).add_done_callback(...) for one record"
_START = "it is start=... (without a committed offset) and on_lost=... (if offsets are gone)"
_COMMIT = "it is commit_every=..., in seconds; None for no automatic commits"
_GROUP_OPTIONS = "it is options=GroupOptions({}=...)"
_FETCHING = "it is fetching=Fetching({}=...)"
_POLL_RECORDS = "there is none: poll() returns one batch; Fetching(memory_bytes=...) limits what is fetched ahead"
_NO_GROUP = "a Reader has no group: use Consumer(group=...), or read(..., start=CommittedBy(group))"

_COMMON: Mapping[str, str] = {
    "bootstrap_servers": _BOOTSTRAP,
    "brokers": _BOOTSTRAP,
    "hosts": _BOOTSTRAP,
    "metadata_broker_list": _BOOTSTRAP,
    "security_protocol": _SECURITY,
    "timeout": _TIMEOUTS,
    "request_timeout_ms": _TIMEOUTS,
    "socket_timeout_ms": _TIMEOUTS,
    "api_version": "there is none: brokers say which versions they understand",
    "metadata_max_age_ms": "it is timeouts=Timeouts(metadata_age=...), in seconds",
    "retry_backoff_ms": _RETRY,
    "reconnect_backoff_ms": _RETRY,
    "statistics_interval_ms": "it is events=[...]",
    "stats_cb": "it is events=[...]",
    "error_cb": "it is events=[...]",
    "loop": "there is none: any loop may be used",
}
_PRODUCER: Mapping[str, str] = {
    "linger": _LINGER,
    "linger_ms": _LINGER,
    "queue_buffering_max_ms": _LINGER,
    "batch_size": _BATCH_BYTES,
    "batch_bytes": _BATCH_BYTES,
    "max_batch_size": _BATCH_BYTES,
    "batch_num_messages": "it is batching=Batching(records=...)",
    "compression_type": "it is compression=...",
    "compression_codec": "it is compression=...",
    "compression_level": "it is level=...",
    "enable_idempotence": "it is idempotent=...",
    "retries": "there is none: a record is tried until delivery_timeout",
    "max_in_flight": _IN_FLIGHT,
    "max_in_flight_requests_per_connection": _IN_FLIGHT,
    "delivery_timeout_ms": "it is delivery_timeout=..., in seconds",
    "message_timeout_ms": "it is delivery_timeout=..., in seconds",
    "buffer_memory": _BUFFERING,
    "max_block_ms": _BUFFERING,
    "queue_buffering_max_kbytes": _BUFFERING,
    "queue_buffering_max_messages": _BUFFERING,
    "message_max_bytes": _RECORD_BYTES,
    "max_request_size": _RECORD_BYTES,
    "max_record_size": _RECORD_BYTES,
    "key_serializer": _SERIALIZER,
    "value_serializer": _SERIALIZER,
    "on_delivery": _CALLBACK,
    "dr_cb": _CALLBACK,
    "dr_msg_cb": _CALLBACK,
    "transaction_timeout_ms": "it is transaction_timeout=..., in seconds",
    "allow_auto_create_topics": "it is unknown_topic=OnUnknownTopic.CREATE",
}
_READING: Mapping[str, str] = {
    "isolation_level": "it is isolation=...",
    "key_deserializer": _DESERIALIZER,
    "value_deserializer": _DESERIALIZER,
    "fetch_min_bytes": _FETCHING.format("min_bytes"),
    "fetch_max_bytes": _FETCHING.format("request_bytes"),
    "fetch_wait_max_ms": _FETCHING.format("max_wait") + ", in seconds",
    "fetch_max_wait_ms": _FETCHING.format("max_wait") + ", in seconds",
    "max_partition_fetch_bytes": _FETCHING.format("request_bytes"),
    "queued_max_messages_kbytes": _FETCHING.format("memory_bytes"),
}
_CONSUMER: Mapping[str, str] = {
    **_READING,
    "group_id": "it is group=...",
    "topic": "it is topics=[...]",
    "auto_offset_reset": _START,
    "enable_auto_commit": _COMMIT,
    "auto_commit_interval_ms": _COMMIT,
    "max_poll_records": _POLL_RECORDS,
    "group_instance_id": _GROUP_OPTIONS.format("instance_id"),
    "group_protocol": _GROUP_OPTIONS.format("protocol"),
    "partition_assignment_strategy": _GROUP_OPTIONS.format("assignors"),
    "session_timeout": _GROUP_OPTIONS.format("session_timeout"),
    "session_timeout_ms": _GROUP_OPTIONS.format("session_timeout") + ", in seconds",
    "heartbeat_interval": _GROUP_OPTIONS.format("heartbeat_interval"),
    "heartbeat_interval_ms": _GROUP_OPTIONS.format("heartbeat_interval") + ", in seconds",
    "max_poll_interval": _GROUP_OPTIONS.format("max_poll_interval"),
    "max_poll_interval_ms": _GROUP_OPTIONS.format("max_poll_interval") + ", in seconds",
    "on_assign": "it is listener=Listener() with assigned(...)",
    "on_revoke": "it is listener=Listener() with revoked(...)",
    "on_lost_partitions": "it is listener=Listener() with lost(...)",
}
_READER: Mapping[str, str] = {
    **_READING,
    "group_id": _NO_GROUP,
    "group": _NO_GROUP,
    "auto_offset_reset": "it is read(..., start=...), and on_lost=... if offsets are gone",
    "enable_auto_commit": "there is none: a Reader never commits",
    "max_poll_records": "there is none: Fetching(memory_bytes=...) limits what is fetched ahead",
}
_BY_OWNER = {"Producer": _PRODUCER, "TopicOptions": _PRODUCER, "Consumer": _CONSUMER, "Reader": _READER}


def renamed(owner: str, name: str) -> str | None:
    """Return what another client's setting is called in this class, None if it is not known. Dots count as `_`."""
    key = name.replace(".", "_").lower()
    if key.startswith(("ssl_", "sasl_")):
        return _SECURITY
    return _BY_OWNER.get(owner, {}).get(key) or _COMMON.get(key)


def unknown_setting(owner: str, name: str, known: Collection[str]) -> str:
    """Return the text of an error for a setting that the class does not have, up to the list of those it has."""
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    hint = renamed(owner, name) or (f"did you mean {close[0]}?" if close else "")
    return f"{owner} has no option {name!r}" + (f": {hint}" if hint else "")


def names_checked(constructor: _Constructor) -> _Constructor:
    """Make an unknown keyword argument of `__init__` a `ConfigError` that says what it is called here.

    One that takes `**options` checks those itself, except for names of other clients.
    """
    parameters = inspect.signature(constructor).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD][1:]
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    owner = constructor.__qualname__.partition(".")[0]

    @functools.wraps(constructor)
    def checked(self: Any, *arguments: Any, **named: Any) -> None:
        for name in named:
            if name not in known and (not takes_more or renamed(owner, name)):
                raise ConfigError(f"{unknown_setting(owner, name, known)}; the options are {', '.join(known)}")
        constructor(self, *arguments, **named)

    wrapped: Any = checked
    typed: _Constructor = wrapped
    return typed
