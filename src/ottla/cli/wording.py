"""The library's advice in the words of the command line: what a program sets, a person gives as an option."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import Advice, reworded

WORDS: Mapping[Advice, str] = {
    Advice.USE_TLS: "give --tls, or --ca-file with the authority that signed its certificate",
    Advice.NO_TLS: "is this a listener without TLS? Then leave out --tls and the options with files for it",
    Advice.CA_FILE: "give --ca-file with the authority that signed it",
    Advice.HOST_NAME: "connect by a name that is in the certificate",
    Advice.CERTIFICATE: "give --cert-file and --key-file",
    Advice.USE_SASL: "does this listener ask for SASL? Then give --username or a token",
    Advice.NO_SASL: "leave out --username and the options for tokens",
    Advice.LOGIN: "the user is given with --username",
    Advice.PROTECT: "give --tls, or log in with SCRAM",
    Advice.ON_LOST: "--on-lost earliest or latest goes on by itself",
    Advice.RECORD_SIZE: "--max-record-bytes; raise it together with max.message.bytes of the topic",
    Advice.BATCH_SIZE: "--max-batch-bytes raises it",
    Advice.FETCH_SIZE: "its operators have limited what one answer may have (fetch.max.bytes)",
}


def worded(text: str) -> str:
    """The text of an error or a warning for people at a command line."""
    return reworded(text, WORDS)
