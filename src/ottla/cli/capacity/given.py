"""From texts, of options or of a file, to a case: each value is parsed in one place, with the option in its error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cli.errors import UsageError
from ottla.cli.values.quantities import parse_duration, parse_size
from ottla.cli.values.rates import is_mean, parse_byte_rate, parse_record_rate

if TYPE_CHECKING:
    from ottla.operations.capacity.load import Load, Machine, Rules, Sites
    from ottla.operations.capacity.measure import Observed
    from ottla.operations.capacity.plan import Case
    from ottla.operations.capacity.rates import Rates

_T = TypeVar("_T")
_DAY = 86400.0
_SIZE_BYTES = 1000
_SPELLED = {"bytes_rate": "bytes", "groups": "consumers", "site_groups": "site-consumers"}
_OF_SITES = ("site_retention", "site_replication", "site_groups", "site_link")


def loaded(config: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the file, replaced by those of the command line."""
    if config is None:
        return dict(given)
    from ottla.operations.capacity.load_file import parse_load

    try:
        text = config.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {config} is not UTF-8: {error}") from error
    return parse_load(text, str(config)) | dict(given)


def is_mean_without_peak(texts: Mapping[str, str]) -> bool:
    """Return whether the rate is one of a day, and no peak is given."""
    rate = texts.get("messages") or texts.get("bytes_rate") or ""
    return "peak" not in texts and is_mean(rate)


def case_of(texts: Mapping[str, str], rates: Sequence[Path], found: Observed | None) -> Case:
    """Return the case. Raises `UsageError` for a text that is no value, `ConfigError` for a wrong combination."""
    from ottla.operations.capacity.plan import Case

    get = _Texts(texts)
    load = _load(get, found)
    machine = _machine(get)
    brokers = get.number("brokers")
    return Case(
        load=load,
        machine=machine,
        rules=_rules(get),
        rates=_rates(get, rates),
        sites=_sites(get, load, machine),
        brokers=found.brokers if brokers is None and found is not None else brokers,
        without=get.number("without") or 0,
    )


class _Texts:
    """Texts by argument; each is parsed when it is asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def parsed(self, name: str, parse: Callable[[str], _T]) -> _T | None:
        """Return the value, None if it is not given. Raises `UsageError` with the option's name."""
        text = self._texts.get(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise UsageError(f"--{_SPELLED.get(name, name.replace('_', '-'))}: {error}") from error

    def number(self, name: str) -> int | None:
        """Return a whole number."""
        return self.parsed(name, _whole)

    def given(self, fields: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
        """Return the fields that are given, by their own names."""
        values = {field: self.parsed(name, parse) for field, (name, parse) in fields.items()}
        return {field: value for field, value in values.items() if value is not None}


def _whole(text: str) -> int:
    if not text.strip().isascii() or not text.strip().lstrip("-").isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _load(get: _Texts, found: Observed | None) -> Load:
    from dataclasses import replace

    from ottla.operations.capacity.load import Load, stored_size

    shared = get.given(
        {
            "peak": ("peak", _decimal),
            "retention": ("retention", parse_duration),
            "replication": ("replication", _whole),
            "groups": ("groups", _whole),
            "lagging": ("lagging", _whole),
            "topics": ("topics", _whole),
            "members": ("members", _whole),
        }
    )
    if found is not None:
        for name in ("messages", "bytes_rate", "size", "compression"):
            if name in get:
                raise UsageError(f"--{_SPELLED.get(name, name)} and --measure are mutually exclusive")
        return replace(found.load, **shared)
    messages, size_rate = get.parsed("messages", parse_record_rate), get.parsed("bytes_rate", parse_byte_rate)
    if (messages is None) == (size_rate is None):
        raise UsageError("the load is missing: pass either --messages or --bytes, or --config FILE, or --measure")
    given_size = get.parsed("size", parse_size)
    size = _SIZE_BYTES if given_size is None else given_size
    if size_rate is not None:
        if "compression" in get:
            raise UsageError("--compression is for --messages: --bytes are what is in the log, compressed")
        if size < 1:
            raise UsageError("--size: a record has at least one byte")
        return Load(records_per_second=size_rate / size, record_bytes=size, stored_record_bytes=size, **shared)
    assert messages is not None
    compression = get.parsed("compression", _decimal)
    stored = stored_size(size, 1.0 if compression is None else compression)
    return Load(records_per_second=messages, record_bytes=size, stored_record_bytes=stored, **shared)


def _machine(get: _Texts) -> Machine:
    from ottla.operations.capacity.load import Machine

    return Machine(
        **get.given(
            {
                "link": ("link", parse_byte_rate),
                "disks": ("disks", _whole),
                "disk_bytes": ("disk", parse_size),
                "disk_rate": ("disk_rate", parse_byte_rate),
                "cores": ("cores", _whole),
                "memory": ("memory", parse_size),
            }
        )
    )


def _rules(get: _Texts) -> Rules:
    from ottla.operations.capacity.load import Rules

    return Rules(
        **get.given(
            {
                "spare": ("spare", _whole),
                "partition_bytes": ("partition_size", parse_size),
                "partitions_per_broker": ("partitions_per_broker", _whole),
            }
        )
    )


def _rates(get: _Texts, reports: Sequence[Path]) -> Rates:
    from dataclasses import replace

    from ottla.errors import ConfigError
    from ottla.operations.capacity.rates import Figure, Rates

    rates = Rates()
    for path in reports:
        try:
            report = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not a report of 'ottla perf --json': {error}") from error
        rates = rates.with_report(report, str(path))
    consumer, core = get.parsed("consumer_rate", _positive), get.parsed("broker_core_rate", _positive)
    if consumer is not None:
        rates = replace(rates, partition_out=Figure(consumer, "given", is_measured=True))
    if core is not None:
        rates = replace(rates, broker_core=Figure(core, "given", is_measured=True))
    return rates


def _positive(text: str) -> float:
    rate = parse_byte_rate(text)
    if rate <= 0:
        raise ValueError(f"{text!r}: a rate must be more than 0")
    return rate


def _sites(get: _Texts, load: Load, machine: Machine) -> Sites | None:
    from dataclasses import replace

    from ottla.operations.capacity.load import Sites

    count = get.number("sites")
    if count is None:
        for name in _OF_SITES:
            if name in get:
                raise UsageError(f"--{_SPELLED.get(name, name.replace('_', '-'))} needs --sites")
        return None
    link = get.parsed("site_link", parse_byte_rate)
    retention = get.parsed("site_retention", parse_duration)
    replication = get.number("site_replication")
    return Sites(
        count=count,
        retention=min(_DAY, load.retention) if retention is None else retention,
        replication=load.replication if replication is None else replication,
        groups=get.number("site_groups") or 0,
        machine=machine if link is None else replace(machine, link=link),
    )
