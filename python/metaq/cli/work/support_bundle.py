"""metaq cluster support-bundle: what is known here and at the cluster, in one file without secrets."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metaq import __version__
from metaq.admin.health.redaction import REMOVED, SECRET_NAME, redact
from metaq.admin.health.support_documents import Document, cluster_documents, json_document, text_document
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import size
from metaq.cli.printing.output import print_one
from metaq.counts import counted
from metaq.errors import CommandError, MetaqError

if TYPE_CHECKING:
    from metaq.cli.reading.contexts import Contexts

BUNDLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""All documents together, before they are compressed."""
LOG_BYTES_MAX: Final = 512 * 1024
LOGS_MAX: Final = 16
SHOWN_VARIABLES: Final = frozenset(
    [
        "METAQ_CLUSTER",
        "METAQ_CONFIG",
        "METAQ_CONTEXT",
        "METAQ_CONTEXTS",
        "METAQ_DATA",
        "METAQ_HOST",
        "METAQ_NAMESRV",
        "METAQ_NAMESRV_PORT",
        "METAQ_BROKER_PORT",
        "METAQ_REGISTER",
        "METAQ_NAME",
        "METAQ_FLUSH",
        "METAQ_LOG_LEVEL",
    ]
)


def write_bundle(
    file: str | None,
    *,
    register: str | None,
    namesrv: str | None,
    cluster: str | None,
    logs: Sequence[str],
    output: Format,
) -> None:
    """Collects everything and writes the file. A cluster that does not answer leaves its parts out."""
    path = Path(file or f"metaq-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if path.exists():
        raise CommandError(f"{path} exists", hint="choose another file; bundles are never overwritten")
    documents = [*_here(logs), *_cluster(register, namesrv, cluster)]
    secrets = _secrets_here()
    kept, left_out = _bounded([_clean(document, secrets) for document in documents])
    kept.insert(0, _contents(kept, left_out))
    try:
        _write(path, kept)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    record = {
        "file": str(path),
        "size_bytes": path.stat().st_size,
        "documents": [{"name": document.name, "about": document.about} for document in kept],
        "left_out": left_out,
    }
    text = f"{path}: {counted(len(kept), 'document')}, {size(path.stat().st_size)}"
    lines = [text, *(f"  {document.name:<32} {document.about}" for document in kept)]
    lines.append("It has no message bodies, keys or passwords. Look through it before you send it.")
    print_one(output, record, lines)


def _cluster(register: str | None, namesrv: str | None, cluster: str | None) -> Iterator[Document]:
    from metaq.cli.reading.connection import connect
    from metaq.cli.work.health_wait import check_health

    try:
        health = check_health(register=register, namesrv=namesrv, cluster=cluster)
        with connect(namesrv, partial=True) as admin:
            yield from cluster_documents(admin, health)
    except MetaqError as error:
        yield text_document("cluster-error.txt", f"{error}\n", "why the cluster could not be asked")


# This machine


def _here(logs: Sequence[str]) -> Iterator[Document]:
    versions = {
        "metaq": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "written_ms": time.time_ns() // 1_000_000,
    }
    yield json_document("versions.json", versions, "versions on this machine")
    yield json_document("environment.json", _variables(), "METAQ_… variables; most values are removed")
    yield json_document("local-settings.json", _local_settings(), "settings on this machine, without secrets")
    yield json_document("contexts.json", _contexts(), "names and addresses of contexts")
    for path in _log_files(logs):
        yield text_document(f"logs/{path.name}", _tail(path), f"the last lines of {path}")


def _variables() -> dict[str, str]:
    return {
        name: redact(value) if name in SHOWN_VARIABLES else REMOVED
        for name, value in sorted(os.environ.items())
        if name.startswith("METAQ_")
    }


def _local_settings() -> dict[str, Any]:
    from metaq.config import load

    try:
        config = load()
    except MetaqError as error:
        return {"error": redact(str(error))}
    return {
        name: {
            "value": REMOVED if SECRET_NAME.search(name) else _plain(setting.value),
            "origin": setting.origin,
        }
        for name, setting in config.settings.items()
    }


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else redact(str(value))


def _contexts() -> dict[str, Any]:
    contexts = _known_contexts()
    if contexts is None:
        return {"error": "the file of contexts cannot be read"}
    return {
        "current": contexts.current,
        "contexts": {
            name: {
                "namesrv": redact(context.namesrv),
                "cluster": context.cluster,
                "register": context.register and redact(context.register),
                "signs_requests": context.access_key is not None or context.secret_key is not None,
            }
            for name, context in contexts.contexts.items()
        },
    }


def _known_contexts() -> Contexts | None:
    from metaq.cli.reading.contexts import read_contexts

    try:
        return read_contexts()
    except MetaqError:
        return None


def _secrets_here() -> frozenset[str]:
    """Secrets that this machine knows. They are removed from every document, whoever wrote them there."""
    from metaq.config import load

    found = {value for name, value in os.environ.items() if SECRET_NAME.search(name) and "/" not in value}
    contexts = _known_contexts()
    for context in contexts.contexts.values() if contexts is not None else ():
        found |= {secret for name, secret in asdict(context).items() if secret and SECRET_NAME.search(name)}
    try:
        settings = load().settings
    except MetaqError:
        settings = {}
    found |= {
        str(setting.value)
        for name, setting in settings.items()
        if SECRET_NAME.search(name) and isinstance(setting.value, str)
    }
    return frozenset(found)


def _log_files(logs: Sequence[str]) -> list[Path]:
    """The given files, those that `metaq dev cluster` keeps in its data directory, and the one that the
    broker of the configured data directory writes to."""
    from metaq.config import load

    found = [Path(log) for log in logs]
    for path in found:
        if not path.is_file():
            raise CommandError(f"--log {path}: there is no such file")
    try:
        data = Path(load()["data"]).expanduser()
        found += sorted((data / "logs").glob("*.log"))
        found += _log_of_holder(data / "lock")
    except (MetaqError, OSError):
        pass
    return found[:LOGS_MAX]


def _log_of_holder(lock: Path) -> list[Path]:
    """The file that the broker which holds a store's lock writes its standard error to. Raises OSError."""
    inode = f":{lock.stat().st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].endswith(inode):
            log = Path(f"/proc/{fields[4]}/fd/2").resolve()
            return [log] if log.is_file() else []
    return []


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LOG_BYTES_MAX, 0))
            return file.read(LOG_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        return f"cannot be read: {error.strerror}\n"


# The file


def _clean(document: Document, secrets: frozenset[str]) -> Document:
    return Document(document.name, redact(document.text, secrets), document.about)


def _bounded(documents: list[Document]) -> tuple[list[Document], list[str]]:
    """The documents that fit, and the names of the others."""
    kept: list[Document] = []
    left_out: list[str] = []
    room = BUNDLE_BYTES_MAX
    for document in documents:
        length = len(document.text.encode())
        if length <= room:
            room -= length
            kept.append(document)
        else:
            left_out.append(document.name)
    return kept, left_out


def _contents(documents: list[Document], left_out: list[str]) -> Document:
    lines = [
        "A support bundle of MetaQ. It has no message bodies, keys or passwords.",
        "",
        *(f"{document.name}: {document.about}" for document in documents),
        *(f"{name}: left out, the bundle would become too large" for name in left_out),
    ]
    return Document("README.txt", "\n".join(lines) + "\n", "this list")


def _write(path: Path, documents: list[Document]) -> None:
    """Writes the file for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    root = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz") or "metaq-support"
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
        for document in documents:
            data = document.text.encode()
            entry = tarfile.TarInfo(f"{root}/{document.name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            bundle.addfile(entry, io.BytesIO(data))
