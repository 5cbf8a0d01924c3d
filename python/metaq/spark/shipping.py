"""Ships MetaQ to executors that do not have it: one archive with the package and its dependencies.

Spark unpacks archives in the working directory of each executor. A wheel given to `--py-files` would stay a
zip file, and Python cannot load a native module from one.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import metaq

UNPACKED: Final = "metaq-package"
"""The name of the archive in an executor's working directory."""
ARCHIVES: Final = "spark.archives"
EXECUTOR_PATH: Final = "spark.executorEnv.PYTHONPATH"

NEEDED: Final = ("msgspec", "opentelemetry-api")
"""Dependencies of reading and writing. Those of Spark itself, such as pyarrow, must be installed there."""


def archive(path: str | Path) -> Path:
    """Writes the archive to `path`, which should end in `.zip`, and replaces a file there. Raises OSError."""
    path = Path(path)
    # A process that ships it meanwhile gets the whole old or the whole new archive.
    with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=path.name, delete=False) as draft:
        try:
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
                for file, name in _files():
                    packed.write(file, name)
            draft.close()
            Path(draft.name).chmod(0o644)
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
    return path


def shipped(config: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Returns `config` with an archive for the executors, which it writes to `directory`."""
    file = archive(directory / f"{UNPACKED}.zip")
    return {
        **config,
        ARCHIVES: joined(",", config.get(ARCHIVES), f"{file}#{UNPACKED}"),
        EXECUTOR_PATH: joined(":", UNPACKED, config.get(EXECUTOR_PATH)),
    }


def is_shipped(config: Mapping[str, str]) -> bool:
    """Returns whether the configuration already ships an archive."""
    return f"#{UNPACKED}" in config.get(ARCHIVES, "")


def joined(by: str, *parts: str | None) -> str:
    """Joins the parts that are there."""
    return by.join(part for part in parts if part)


def _files() -> Iterator[tuple[Path, str]]:
    package = Path(metaq.__file__).parent
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file, str(file.relative_to(package.parent))
    for needed in with_dependencies(NEEDED):
        yield from installed_files(needed)


def installed_files(installed: Distribution) -> Iterator[tuple[Path, str]]:
    """Returns the files of a distribution, and their names in a folder of packages."""
    for listed in installed.files or ():
        file = Path(str(listed.locate()))
        if ".." not in listed.parts and "__pycache__" not in listed.parts and file.is_file():
            yield file, str(listed)


def with_dependencies(names: Sequence[str]) -> list[Distribution]:
    """Returns installed distributions and all that they need; raises PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if name in names:
                raise
            continue  # For another Python or another system than this one.
        for line in found[name].requires or ():
            if "extra ==" not in line:
                wanted.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return list(found.values())
