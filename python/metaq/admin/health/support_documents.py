"""The state of a cluster as documents for a support bundle: JSON texts, and pages of brokers. They hold no
message and no secret."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from metaq.admin.health.redaction import redact, shown_settings
from metaq.admin.health.results import BrokerHealth, Health
from metaq.admin.sync import Admin
from metaq.errors import MetaqError

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
GROUPS_MAX: Final = 200
"""Groups whose progress is read: each takes a few requests."""
_PAGE_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Document:
    """One file of a bundle."""

    name: str
    text: str
    about: str
    """One line about its content."""


def cluster_documents(admin: Admin, health: Health) -> Iterator[Document]:
    """Yields what the cluster reports. A part that cannot be read is a document that says why."""
    yield json_document("health.json", health_record(health), "health, findings, brokers, broker groups")
    if not health.brokers:
        return
    for broker in health.brokers:
        if broker.error is not None:
            continue
        yield from _broker_documents(admin, broker)
    yield _asked("clients.json", "connected producers and consumers", lambda: asdict(admin.brokers.clients()))
    yield _asked("topics.json", "topics", lambda: [asdict(topic) for topic in admin.topics.list()])
    yield _asked("groups.json", "consumer groups", lambda: asdict(admin.groups.list()))
    yield _asked("progress.json", f"progress of the first {GROUPS_MAX} groups", lambda: _progress(admin))


def _broker_documents(admin: Admin, broker: BrokerHealth) -> Iterator[Document]:
    label = f"{broker.name}-{broker.id}"
    yield _asked(
        f"settings/{label}.json",
        "settings of the broker; values outside an allow-list are removed",
        lambda: shown_settings(admin.brokers.configuration(broker.address).values),
    )
    yield _asked(
        f"figures/{label}.json",
        "figures of the broker",
        lambda: asdict(admin.brokers.figures(broker.address)),
    )
    if broker.metrics_address is not None:
        for page in ("metrics", "readyz"):
            yield _page(f"{page}/{label}.txt", f"http://{broker.metrics_address}/{page}")


def health_record(health: Health) -> dict[str, Any]:
    """Returns a health check as a JSON object."""
    return {
        "healthy": health.healthy,
        "summary": health.summary,
        "findings": [asdict(finding) for finding in health.findings],
        "name_servers": [asdict(server) for server in health.name_servers],
        "brokers": [asdict(broker) for broker in health.brokers],
        "groups": health.groups,
    }


def json_document(name: str, value: object, about: str) -> Document:
    """Returns a value as JSON that people can read."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return Document(name, _cut(text), about)


def text_document(name: str, text: str, about: str) -> Document:
    """Returns a text, cut to the size of a document; the end of it is kept."""
    return Document(name, _cut(redact(text)), about)


def _cut(text: str) -> str:
    if len(text) <= DOCUMENT_BYTES_MAX:
        return text
    return f"(the beginning is cut off)\n{text[-DOCUMENT_BYTES_MAX:]}"


def _asked(name: str, about: str, ask: Callable[[], object]) -> Document:
    try:
        return json_document(name, ask(), about)
    except MetaqError as error:
        return json_document(name, {"error": str(error)}, f"{about}: not readable")


def _progress(admin: Admin) -> dict[str, object]:
    progress: dict[str, object] = {}
    names = [group.name for group in admin.groups.list().groups if group.kind == "normal"]
    for name in names[:GROUPS_MAX]:
        try:
            progress[name] = asdict(admin.groups.progress(name))
        except MetaqError as error:
            progress[name] = {"error": str(error)}
    return progress


def _page(name: str, url: str) -> Document:
    about = f"the page {url}"
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_TIMEOUT_S) as answer:
            return text_document(name, answer.read(DOCUMENT_BYTES_MAX).decode("utf-8", "replace"), about)
    except urllib.error.HTTPError as error:
        text = error.read(DOCUMENT_BYTES_MAX).decode("utf-8", "replace")
        return text_document(name, f"{error.code} {error.reason}\n{text}", about)
    except OSError as error:
        return text_document(name, f"not reachable from here: {error}\n", f"{about}: not reachable")
