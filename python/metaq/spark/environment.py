"""A packed environment: the archive that `metaq spark pack` writes and that executors get.

It holds an interpreter, its library and installed packages, so workers need no Python of their own. Its
first file says what it is, so that a session can refuse an archive that does not fit before Spark starts.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import metaq
from metaq.spark.errors import SparkError
from metaq.spark.interpreters import PYTHON
from metaq.spark.shipping import ARCHIVES, joined

UNPACKED: Final = "metaq-environment"
"""The name of the archive in an executor's working directory."""
PROGRAM: Final = "bin/python"
MANIFEST: Final = "metaq-environment.json"
MANIFEST_BYTES_MAX: Final = 1 << 20
NAME_RULE: Final = "ends in .tar.gz or .tgz and has no # or comma"
_PACK: Final = "metaq spark pack FILE.tar.gz"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an archive, in versions."""

    metaq: str
    python: str
    system: str
    """System and processor type: `linux-x86_64`."""

    @classmethod
    def here(cls) -> Manifest:
        """Returns the manifest of the environment of this process."""
        return cls(metaq.__version__, platform.python_version(), f"{sys.platform}-{platform.machine()}")

    def encoded(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def is_valid_name(name: str) -> bool:
    """Returns whether Spark sees by the name how to unpack the file."""
    return name.endswith((".tar.gz", ".tgz")) and not re.search(r"[#,]", name)


def read_manifest(archive: Path) -> Manifest:
    """Reads the first file of an archive; raises SparkError."""
    try:
        with tarfile.open(archive, "r|gz") as packed:
            first = packed.next()
            if first is None or first.name != MANIFEST or first.size > MANIFEST_BYTES_MAX:
                raise ValueError("it does not begin with a manifest")
            content = packed.extractfile(first)
            found = json.loads(content.read()) if content is not None else None
            if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
                raise ValueError("its manifest is malformed")
            return Manifest(**found)
    except OSError as error:
        reason = error.strerror or str(error)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, TypeError) as error:
        reason = str(error)
    raise SparkError(
        f"{archive} is not a packed environment that can be read: {reason}", hint=f"write one with {_PACK}"
    )


def with_environment(config: Mapping[str, str], archive: str) -> dict[str, str]:
    """Returns `config` with the archive for the executors, and its Python; raises SparkError."""
    if PYTHON in config:
        raise SparkError(
            f"{PYTHON} = {config[PYTHON]} and the environment {archive} both name the Python of executors",
            hint="remove one of them",
        )
    if not is_valid_name(archive):
        raise SparkError(
            f"the environment {archive} must have a name that {NAME_RULE}",
            hint="Spark sees by the name how to unpack the file",
        )
    local = re.sub(r"^file:(//)?", "", archive)
    if not re.match(r"\w+:", local):
        _require_fitting(Path(local))
    return {
        **config,
        ARCHIVES: joined(",", config.get(ARCHIVES), f"{archive}#{UNPACKED}"),
        PYTHON: f"./{UNPACKED}/{PROGRAM}",
    }


def _require_fitting(archive: Path) -> None:
    """Raises SparkError if executors with this archive could not work for this driver."""
    found, here = read_manifest(archive), Manifest.here()
    if found.python.split(".")[:2] != here.python.split(".")[:2]:
        raise SparkError(
            f"{archive} holds Python {found.python}, but this is Python {here.python}: Spark needs the same"
            " minor version on the driver and on executors",
            hint=f"write it again, here, with {_PACK}",
        )
    if found.metaq != here.metaq:
        raise SparkError(
            f"{archive} holds MetaQ {found.metaq}, but this is MetaQ {here.metaq}",
            hint=f"write it again, here, with {_PACK}",
        )
