"""Jars that Maven fetches are used only if their checksum is in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.jar_checksums import POMS
from tests.support.maven import CHECKSUMS, REPOSITORY_ROOT, check_jars, checksum_line, classpath

POM = REPOSITORY_ROOT / "tests" / "spark" / "pom.xml"


def test_a_jar_with_another_checksum_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    used = classpath(POM, tmp_path / "kept").split(os.pathsep)
    altered = tmp_path / "altered.sha256"
    victim = checksum_line(Path(used[0]))
    assert victim in CHECKSUMS.read_text().splitlines()
    other = ("1" if victim[0] == "0" else "0") + victim[1:]
    altered.write_text(CHECKSUMS.read_text().replace(victim, other))
    with pytest.raises(RuntimeError, match="make jars") as raised:
        classpath(POM, tmp_path / "kept", checksums=altered)
    assert used[0] in str(raised.value) and used[1] not in str(raised.value)
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_jar_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    jar = tmp_path / "new-1.jar"
    jar.write_bytes(b"classes")
    listed = tmp_path / "listed.sha256"
    listed.write_text(f"{checksum_line(jar)}\n")
    check_jars([jar], listed)
    jar.write_bytes(b"other classes")
    with pytest.raises(RuntimeError, match=r"new-1\.jar"):
        check_jars([jar], listed)


def test_the_list_is_written_from_every_pom() -> None:
    poms = {
        str(path.relative_to(REPOSITORY_ROOT))
        for folder in ("bench", "tests", "examples")
        for path in (REPOSITORY_ROOT / folder).rglob("*pom.xml")
    }
    assert poms == {pom for pom, _ in POMS}
