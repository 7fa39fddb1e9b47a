"""What to do about an error, in terms of the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["Advice", "reworded"]


class Advice(StrEnum):
    """What to change in a program. Commands and Spark use their own words: `cli.advice`, `spark.wording`."""

    USE_TLS = "set Security(tls=Tls(...))"
    NO_TLS = "is this a listener without TLS? Then leave out Security(tls=...)"
    CA_FILE = "set Tls(ca_file=...) to the authority that signed it"
    HOST_NAME = "connect by a name in the certificate, or set Tls(check_hostname=False) knowingly"
    CERTIFICATE = "set Tls(cert_file=..., key_file=...)"
    USE_SASL = "does this listener ask for SASL? Then set Security(sasl=...)"
    NO_SASL = "leave out Security(sasl=...)"
    LOGIN = "the user is set with Security(sasl=...)"
    PROTECT = "set Security(tls=Tls(...)), or log in with Scram"
    ON_LOST = "set on_lost='earliest' or 'latest' to continue and get an event instead"
    RECORD_SIZE = (
        "max_record_bytes; raise it together with max.message.bytes of the topic, or set on_oversize to divert such"
        " records"
    )
    BATCH_SIZE = "Fetching(max_batch_bytes=...) raises it"
    FETCH_SIZE = "raise Fetching(request_bytes=...)"
    GROUP_SETTINGS = "use the settings of the group"
    LAKE_LAYOUT = "open it with the layout that it has"
    REPLAY_AGAIN = "or everything under a new name"
    VERIFY = "verify the archive"
    VERIFY_DEEP = "verify the archive, reading all records"
    LAKE_REPAIR = (
        "Put the missing entries back; or ottla.lake.repair says what is there without an entry, and can set it aside"
    )
    ADDRESS = "pass HOST:PORT, for example 'localhost:9092'"
    CLUSTER_START = "start it with up()"
    CLUSTER_RESTART = "up() starts it again, down() removes it"
    CLUSTER_RESUME = "up() resumes it"
    CLUSTER_REMOVE = "down() removes it"
    CLUSTER_CLEAR = "down() removes what is left of it"
    JAR_CACHE = "choose another with cache_dir=..."


def reworded(text: str, words: Mapping[Advice, str]) -> str:
    """Return the text with other words for each advice, for users who do not call the Python API."""
    for advice in sorted(words, key=len, reverse=True):  # some begin like others
        text = text.replace(advice.value, words[advice])
    return text
