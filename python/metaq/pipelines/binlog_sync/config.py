"""The TOML file of binlog-sync: [source], [topic], [snapshot] and [state]."""

from __future__ import annotations

import fnmatch
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Final

from metaq.client.compression import FORMATS, Format
from metaq.config.kinds import Bytes, Choice, Flag, Number, Seconds, Text
from metaq.errors import ConfigError
from metaq.pipelines.settings import (
    NAMESRV,
    STATE_FILE,
    TOPIC_NAME,
    Key,
    Sections,
    Texts,
    read_secret,
    read_sections,
)

KIB, MIB = 1024, 1024 * 1024
MINIMAL, FULL = "minimal", "full"
REREAD, WARN, STOP = "reread", "warn", "stop"
SKIP, ERROR = "skip", "error"

_TABLES: Final = Texts('a list of DATABASE.TABLE, where * matches anything, such as ["shop.*"]')

SECTIONS: Final[Sections] = {
    "source": {
        "host": Key(Text(says="a host name or an address"), "127.0.0.1"),
        "port": Key(Number(1, 65_535), 3306),
        "socket": Key(Text(says="the path of the server's socket"), None),
        "user": Key(Text(says="the name of a user of the database")),
        "password_env": Key(Text(says="the name of an environment variable"), None),
        "password_file": Key(Text(says="the path of a file"), None),
        "tls_ca": Key(Text(says="the path of a file with certificates"), None),
        "tables": Key(_TABLES),
        "exclude": Key(_TABLES, ()),
        "unsuitable": Key(Choice((SKIP, ERROR)), SKIP),
        "unknown_statements": Key(Choice((REREAD, STOP)), None),
        "cascades": Key(Choice((REREAD, WARN, STOP)), None),
        "server_id": Key(Number(1, 2**32 - 1), None),
    },
    "topic": {
        "namesrv": NAMESRV,
        "name": TOPIC_NAME,
        "queues": Key(Number(1, 1024), 8),
        "row_image": Key(Choice((MINIMAL, FULL)), MINIMAL),
        "compression": Key(Choice((*FORMATS, "none")), "lz4"),
        "message_bytes": Key(Bytes(KIB, 2 * MIB), 256 * KIB),
        "buffer_bytes": Key(Bytes(MIB, 4096 * MIB), 64 * MIB),
    },
    "snapshot": {
        "enabled": Key(Flag(), True),
        "chunk_rows": Key(Number(1, 1_000_000), 5_000),
        "chunk_bytes": Key(Bytes(KIB, 4096 * MIB), 32 * MIB),
        "reread_rows_per_second": Key(Number(0), 10_000),
        "reread_interval_s": Key(Seconds(0, 86_400), 60.0),
    },
    "state": {
        "file": Key(STATE_FILE),
        "save_interval_s": Key(Seconds(0.05, 60), 1.0),
    },
}


@dataclass(frozen=True, slots=True)
class BinlogConfig:
    """Checked settings. `repr` hides the password, so that no traceback shows it."""

    host: str
    port: int
    socket: str | None
    user: str
    password: str = field(repr=False)
    tls_ca: str | None
    tables: tuple[str, ...]
    exclude: tuple[str, ...]
    unsuitable: str
    unknown_statements: str
    """The policy for statements that are not understood."""
    cascades: str
    """The policy for foreign keys whose actions change rows."""
    server_id: int
    nameservers: str
    topic: str
    queues: int
    row_image: str
    compression: Format | None
    message_bytes: int
    buffer_bytes: int
    snapshot: bool
    chunk_rows: int
    chunk_bytes: int
    reread_rows_per_second: int
    reread_interval_s: float
    state_file: Path
    save_interval_s: float

    @property
    def source(self) -> str:
        """The address of the database, for messages."""
        return self.socket or f"{self.host}:{self.port}"

    def selects(self, database: str, table: str) -> bool:
        name = f"{database}.{table}"
        return database not in SYSTEM_DATABASES and (
            any(fnmatch.fnmatchcase(name, pattern) for pattern in self.tables)
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)
        )

    def may_select_from(self, database: str) -> bool:
        return database not in SYSTEM_DATABASES and any(
            fnmatch.fnmatchcase(database, pattern.partition(".")[0]) for pattern in self.tables
        )


SYSTEM_DATABASES: Final = frozenset(("mysql", "information_schema", "performance_schema", "sys"))


def read_config(path: Path) -> BinlogConfig:
    """Reads and checks the file; raises ConfigError."""
    # binlog-mirror has sections in the same file and checks them itself.
    values = read_sections(path, SECTIONS, ignored=("mirror", "tables", "jdbc", "spark"))
    source, topic, snapshot, state = (values[name] for name in ("source", "topic", "snapshot", "state"))
    for name in ("tables", "exclude"):
        for pattern in source[name]:
            if not re.fullmatch(r"[^.]+\.[^.]+", pattern):
                raise ConfigError(f"{path}: source.{name} has {pattern!r}: write DATABASE.TABLE")
    if not source["tables"]:
        raise ConfigError(f"{path}: source.tables is empty: it must be {_TABLES.describe()}")
    # Paths are relative to the TOML file, so that the working directory does not matter.
    state_file = path.parent / state["file"]
    return BinlogConfig(
        host=source["host"],
        port=source["port"],
        socket=source["socket"],
        user=source["user"],
        password=read_secret(path, "source.password", source["password_env"], source["password_file"]),
        tls_ca=source["tls_ca"] and str(path.parent / source["tls_ca"]),
        tables=source["tables"],
        exclude=source["exclude"],
        unsuitable=source["unsuitable"],
        unknown_statements=_unknown_statements(
            path, source["unknown_statements"], may_read_tables=snapshot["enabled"]
        ),
        cascades=_cascades(path, source["cascades"], may_read_tables=snapshot["enabled"]),
        server_id=source["server_id"] or _own_server_id(state_file, topic["name"]),
        nameservers=";".join(topic["namesrv"]),
        topic=topic["name"],
        queues=topic["queues"],
        row_image=topic["row_image"],
        compression=None if topic["compression"] == "none" else topic["compression"],
        message_bytes=topic["message_bytes"],
        buffer_bytes=topic["buffer_bytes"],
        snapshot=snapshot["enabled"],
        chunk_rows=snapshot["chunk_rows"],
        chunk_bytes=snapshot["chunk_bytes"],
        reread_rows_per_second=snapshot["reread_rows_per_second"],
        reread_interval_s=snapshot["reread_interval_s"],
        state_file=state_file,
        save_interval_s=state["save_interval_s"],
    )


def _cascades(path: Path, wanted: str | None, *, may_read_tables: bool) -> str:
    if wanted == REREAD and not may_read_tables:
        raise ConfigError(
            f'{path}: source.cascades is "{REREAD}", but snapshot.enabled is false',
            hint=f'set snapshot.enabled = true, or source.cascades = "{WARN}" or "{STOP}"',
        )
    return wanted or (REREAD if may_read_tables else WARN)


def _unknown_statements(path: Path, wanted: str | None, *, may_read_tables: bool) -> str:
    if wanted == REREAD and not may_read_tables:
        raise ConfigError(
            f'{path}: source.unknown_statements is "{REREAD}", but snapshot.enabled is false',
            hint=f'set snapshot.enabled = true, or source.unknown_statements = "{STOP}"',
        )
    return wanted or (REREAD if may_read_tables else STOP)


def _own_server_id(state_file: Path, topic: str) -> int:
    """Returns a number that is the same at every start, and far from the small numbers that servers get.

    It must be unique: if two readers use the same number, the server disconnects the first one.
    """
    own = f"{gethostname()}:{state_file.resolve()}:{topic}"
    return 2**31 + zlib.crc32(own.encode()) % (2**31 - 1)
