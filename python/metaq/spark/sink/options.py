"""The options of the sink, checked before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from metaq.client.message import BODY_BYTES_MAX, check_group, check_topic
from metaq.client.producer.options import KIB, MIB, ProducerOptions
from metaq.client.producer.results import SendStatus
from metaq.errors import UsageError
from metaq.spark.errors import OptionError
from metaq.spark.source.options import COMMON, DEFAULT_NAMESERVERS, Kind, one_of, read_options, truth

DEFAULT_GROUP: Final = "metaq-spark"
_JOBS: Final = "JOBS"
SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "queryname", "mode"))
"""Options that Spark passes to every sink."""


class Guarantee(StrEnum):
    """How often consumers see a row."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything that a writer needs to know."""

    nameservers: str = DEFAULT_NAMESERVERS
    timeout_s: float = 60.0
    """How long to wait for brokers that cannot be reached."""
    topic: str | None = None
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    group: str = DEFAULT_GROUP
    accept: frozenset[SendStatus] = frozenset()
    body_bytes_max: int = BODY_BYTES_MAX
    batch_bytes: int = 256 * KIB
    buffer_bytes: int = 32 * MIB
    app_id: str | None = None
    """With `version` the identity of a write. Rows of writes with the same identity are shown once."""
    version: int | None = None
    may_start_late: bool = False
    """Whether a query may start to write exactly once after its first batch."""

    def producer(self, half_properties: str | None = None) -> ProducerOptions:
        return ProducerOptions(
            self.group,
            timeout_s=self.timeout_s,
            accept=self.accept,
            body_bytes_max=self.body_bytes_max,
            compression=None,
            batch_bytes_max=self.batch_bytes,
            buffer_bytes_max=self.buffer_bytes,
            half_properties=half_properties,
        )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Reads the options of the sink. Raises OptionError, which names the option and its values."""
    ours = {name: text for name, text in given.items() if name.lower() not in SPARKS_OWN}
    values = read_options(ours, SINK)
    options = SinkOptions(**{_FIELDS[name]: value for name, value in values.items()})
    if (options.app_id is None) != (options.version is None):
        raise OptionError(
            "only one of the options txnAppId and txnVersion is given", hint="give both, or neither"
        )
    if options.app_id is not None and options.guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError(
            "the options txnAppId and txnVersion are for exactly once",
            hint="give deliveryGuarantee=exactly_once too",
        )
    return options


def _topic(text: str) -> str:
    check_topic(text)
    return text


def _group(text: str) -> str:
    check_group(text)
    return text


def _identity(text: str) -> str:
    if text == _JOBS:
        raise ValueError("the markers of jobs without an identity are there")
    check_topic(f"METAQ_SPARK_{text}")
    return text


def _statuses(text: str) -> frozenset[SendStatus]:
    try:
        return SendStatus.all_of(name.strip() for name in text.split(",") if name.strip())
    except UsageError as error:
        raise ValueError(str(error)) from None


def _between(low: int, high: int, accepted: str) -> Kind:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError("it is out of its limits")
        return value

    return Kind(read, accepted)


_GUARANTEE: Final = one_of(*Guarantee)

SINK: Final[dict[str, Kind]] = {
    **COMMON,
    "topic": Kind(_topic, "the name of a topic"),
    "deliveryGuarantee": Kind(lambda text: Guarantee(_GUARANTEE.parse(text)), _GUARANTEE.accepted),
    "producerGroup": Kind(_group, "the name of a group"),
    "accept": Kind(
        _statuses, "any of flush-timeout, replica-missing and replica-timeout, separated by commas"
    ),
    "bodyBytesMax": _between(1, 64 * MIB, "bytes, from 1 to 64 MiB"),
    "batchBytes": _between(KIB, 4 * MIB, "bytes, from 1 KiB to 4 MiB"),
    "bufferBytes": _between(64 * KIB, 1024 * MIB, "bytes, from 64 KiB to 1 GiB"),
    "txnAppId": Kind(_identity, "at most 100 letters, digits, %, |, _ and -, but not JOBS"),
    "txnVersion": _between(0, 2**63 - 1, "a whole number from 0 on"),
    "exactlyOnceFromAnyBatch": Kind(truth, "true or false"),
}

_FIELDS: Final[dict[str, Any]] = {
    "nameservers": "nameservers",
    "timeout": "timeout_s",
    "topic": "topic",
    "deliveryGuarantee": "guarantee",
    "producerGroup": "group",
    "accept": "accept",
    "bodyBytesMax": "body_bytes_max",
    "batchBytes": "batch_bytes",
    "bufferBytes": "buffer_bytes",
    "txnAppId": "app_id",
    "txnVersion": "version",
    "exactlyOnceFromAnyBatch": "may_start_late",
}
