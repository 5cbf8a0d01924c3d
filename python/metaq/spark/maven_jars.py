"""Finds the jars of a package in Maven's local repository, if Spark cannot download it.

Spark asks `~/.m2/repository` itself, but it knows no other place, and it gives up if one description or jar
of the tree is not there. Of the tree we need only the package's own jars: Spark has the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

POM_BYTES_MAX: Final = 4 << 20
JARS_MAX: Final = 200

_OWN_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"io.delta": ("io.delta", "io.unitycatalog")}
"""The groups whose jars a package needs, if they are not only its own."""
_NAMED: Final = re.compile(r"-Dmaven\.repo\.local=(\S+)")
_SAFE: Final = re.compile(r"[\w.+-]+")


class NotThere(Exception):
    """A jar is not in the repository; the message is its path."""


def repositories(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Returns where Maven keeps what it has downloaded."""
    found = os.environ if environment is None else environment
    named = [
        match[1] for name in ("MAVEN_ARGS", "MAVEN_OPTS") for match in _NAMED.finditer(found.get(name, ""))
    ]
    home = Path(found.get("HOME") or Path.home()) / ".m2"
    try:
        settings = _parsed(home / "settings.xml")
    except NotThere:
        settings = None
    if settings is not None and (text := _text(settings, "localRepository")):
        named.append(text.replace("${user.home}", str(home.parent)))
    return [*map(Path, named), home / "repository"]


def maven_jars(packages: Iterable[str], repository: Path) -> list[Path]:
    """Returns the jars of packages such as `io.delta:delta-spark_4.2_2.13:4.4.0`; raises NotThere."""
    jars: dict[tuple[str, str], Path] = {}
    wanted = [_coordinates(package) for package in packages]
    groups = {name for group, _, _ in wanted for name in _OWN_GROUPS.get(group, (group,))}
    while wanted:
        group, artifact, version = wanted.pop()
        if (group, artifact) in jars:
            continue
        folder = repository.joinpath(*group.split("."), artifact, version)
        jar = folder / f"{artifact}-{version}.jar"
        if not jar.is_file() or len(jars) == JARS_MAX:
            raise NotThere(str(jar))
        jars[group, artifact] = jar
        wanted += _needed(_parsed(folder / f"{artifact}-{version}.pom"), version, groups)
    return list(jars.values())


def _coordinates(package: str) -> tuple[str, str, str]:
    parts = package.strip().split(":")
    if len(parts) != 3 or not all(map(_SAFE.fullmatch, parts)) or ".." in parts:
        raise NotThere(package)
    return parts[0], parts[1], parts[2]


def _parsed(file: Path) -> ElementTree.Element:
    try:
        if file.stat().st_size > POM_BYTES_MAX:
            raise NotThere(str(file))
        return ElementTree.fromstring(file.read_bytes())
    except (OSError, ElementTree.ParseError) as error:
        raise NotThere(str(file)) from error


def _needed(pom: ElementTree.Element, own: str, groups: Iterable[str]) -> list[tuple[str, str, str]]:
    """Returns the dependencies of a package that belong to one of the groups."""
    found = []
    for dependency in pom.findall("./{*}dependencies/{*}dependency"):
        group, artifact, version = (_text(dependency, name) for name in ("groupId", "artifactId", "version"))
        is_needed = _text(dependency, "scope") in ("", "compile", "runtime")
        if group in groups and is_needed and _text(dependency, "optional") != "true":
            version = own if version in ("", "${project.version}", "${version}") else version
            found.append(_coordinates(f"{group}:{artifact}:{version}"))
    return found


def _text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(f"./{{*}}{name}") or "").strip()
