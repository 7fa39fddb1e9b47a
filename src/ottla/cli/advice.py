"""The library's advice in terms of command-line options: what a program sets as an argument, a user passes here."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import Advice, reworded


def cluster_words(name: str | None = None) -> Mapping[Advice, str]:
    """Return advice about the local cluster of this name; without a name, the reader adds it."""
    option = "" if name in (None, "default") else f" --name {name}"
    also = " with this name" if name is None else ""
    up, down = f"'ottla cluster up{option}'{also}", f"'ottla cluster down{option}'{also}"
    return {
        Advice.CLUSTER_START: f"start it with {up}",
        Advice.CLUSTER_RESTART: f"{up} starts it again, {down} removes it",
        Advice.CLUSTER_RESUME: f"{up} resumes it",
        Advice.CLUSTER_REMOVE: f"{down} removes it",
        Advice.CLUSTER_CLEAR: f"{down} removes what is left of it",
    }


WORDS: Mapping[Advice, str] = {
    Advice.USE_TLS: "pass --tls, or --ca-file with the authority that signed its certificate",
    Advice.NO_TLS: "is this a listener without TLS? Then leave out --tls, --ca-file, --cert-file and --key-file",
    Advice.CA_FILE: "pass --ca-file with the authority that signed it",
    Advice.HOST_NAME: "connect by a name in the certificate",
    Advice.CERTIFICATE: "pass --cert-file and --key-file",
    Advice.USE_SASL: "does this listener require SASL? Then pass --username or a token",
    Advice.NO_SASL: "leave out --username and the --oauth options",
    Advice.LOGIN: "the user comes from --username",
    Advice.PROTECT: "pass --tls, or log in with SCRAM",
    Advice.ON_LOST: "--on-lost earliest or latest continues there",
    Advice.RECORD_SIZE: "--max-record-size; raise it together with max.message.bytes of the topic",
    Advice.BATCH_SIZE: "--max-batch-size raises it",
    Advice.FETCH_SIZE: "the brokers limit the size of a response (fetch.max.bytes)",
    Advice.GROUP_SETTINGS: (
        "use the settings of the group, or change them with 'ottla work reset --settings' while no node runs"
    ),
    Advice.LAKE_LAYOUT: "leave out --format, --partition-by and --event-time",
    Advice.REPLAY_AGAIN: "or everything with --again",
    Advice.VERIFY: "see 'ottla lake verify'",
    Advice.VERIFY_DEEP: "see 'ottla lake verify --deep'",
    Advice.LAKE_REPAIR: (
        "Put the missing entries back; or 'ottla lake repair PATH' says what is there without an entry, and can set it"
        " aside"
    ),
    **cluster_words(),
    Advice.ADDRESS: "pass --bootstrap HOST:PORT",
    Advice.JAR_CACHE: "choose another with --cache or OTTLA_CACHE",
}


_SIDE = "in the file of --from-config or --to-config, or the table of this side in the file of links"
_WORDS_OF: Mapping[str, Mapping[Advice, str]] = {
    "mirror": {
        Advice.USE_TLS: f"set tls = true, or ca_file to the authority that signed its certificate, {_SIDE}",
        Advice.NO_TLS: f"is this a listener without TLS? Then leave out tls, ca_file, cert_file and key_file {_SIDE}",
        Advice.CA_FILE: f"set ca_file to the authority that signed it, {_SIDE}",
        Advice.CERTIFICATE: f"set cert_file and key_file {_SIDE}",
        Advice.USE_SASL: f"does this listener require SASL? Then set username and password_file, or a token, {_SIDE}",
        Advice.NO_SASL: f"leave out username and the oauth keys {_SIDE}",
        Advice.LOGIN: f"the user comes from username {_SIDE}",
        Advice.PROTECT: f"set tls = true, or log in with SCRAM, {_SIDE}",
    },
    "query": {Advice.ON_LOST: "--from earliest starts at the first record that is left"},
}
"""What is different for commands that lack an option."""


def reword(text: str, *, command: str | None = None) -> str:
    """Return the text of an error or a warning with its advice in terms of options, of this command if one is named."""
    return reworded(text, {**WORDS, **_WORDS_OF.get(command or "", {})})
