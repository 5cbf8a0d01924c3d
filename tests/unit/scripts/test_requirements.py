"""Everything that pip fetches at set-up has a version and a checksum in requirements/."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "requirements"
SOURCES = sorted(FOLDER.glob("*.in"))
NOT_INSTALLED_FOR_TESTS = ("bench", "uv")
PINNED = re.compile(r"([a-z0-9][a-z0-9-]*)==([^\s;]+)(?: ; [^\\]+?)?((?: --hash=sha256:[0-9a-f]{64})+)")
# An installation may lack checksums only if pip cannot fetch anything, or if the page says what that means.
INSTALLATION = re.compile(r"(?:\bpip|-m pip) install\b.*")
WITHOUT_CHECKSUMS = ('metaq-env/bin/pip install "$(echo dist/pymetaq-*.whl)[binlog,spark]"',)


@dataclass(frozen=True)
class Pin:
    version: str
    hashes: frozenset[str]


def pins(text: str) -> dict[str, Pin]:
    """Reads a file; raises ValueError for a line that is not a version with checksums."""
    found: dict[str, Pin] = {}
    for line in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines():
        pinned = PINNED.fullmatch(line)
        if pinned is None:
            raise ValueError(f"not a version with checksums: {line}")
        found[pinned[1]] = Pin(pinned[2], frozenset(pinned[3].split()))
    return found


def file_pins(source: Path) -> dict[str, Pin]:
    return pins(source.with_suffix(".txt").read_text(encoding="utf-8"))


def direct(source: Path) -> dict[str, str]:
    """Returns the versions that an .in file names, with those of the files it includes."""
    found: dict[str, str] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["-r"]:
            found |= direct(source.parent / words[1])
        elif words:
            name, _, version = words[0].partition("==")
            found[canonicalize_name(name)] = version
    return found


def closure(names: list[str]) -> dict[str, str]:
    """Returns the installed versions of packages and of all that they need here."""
    found: dict[str, str] = {}
    waiting = [(name, "") for name in names]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        installed = metadata.distribution(name)
        found[canonicalize_name(name)] = installed.version
        for text in installed.requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                more = {(canonicalize_name(needed.name), one) for one in ("", *needed.extras)} - seen
                seen |= more
                waiting.extend(more)
    return found


def test_the_reader_refuses_what_pip_could_not_check() -> None:
    digest = "0" * 64
    assert pins(f"a==1 ; x == 'y' \\\n    --hash=sha256:{digest}\n    # via b\n") == {
        "a": Pin("1", frozenset({f"--hash=sha256:{digest}"}))
    }
    for text in (
        "a==1\n",
        "a>=1 --hash=sha256:" + digest,
        "a==1 \\\n    --hash=md5:" + "0" * 32,
        "-r other.txt\n",
        "--extra-index-url somewhere\n",
        "a @ file:///a.whl --hash=sha256:" + digest,
    ):
        with pytest.raises(ValueError, match="not a version with checksums"):
            pins(text)


def test_each_file_has_its_source() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_requirement_has_checksums_and_no_address(source: Path) -> None:
    found = file_pins(source)
    assert direct(source).items() <= {name: pin.version for name, pin in found.items()}.items()
    for path in (source, source.with_suffix(".txt")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"://|--(extra-)?index|--find-links|--trusted-host|\b\w+\.(com|net|org|io)\b", text
        )


def test_all_files_agree() -> None:
    every: dict[str, set[Pin]] = {}
    for source in SOURCES:
        for name, pin in file_pins(source).items():
            every.setdefault(name, set()).add(pin)
    assert [name for name, found in every.items() if len(found) > 1] == []


@pytest.mark.parametrize(
    "source",
    [path for path in SOURCES if path.stem not in NOT_INSTALLED_FOR_TESTS],
    ids=lambda path: path.stem,
)
def test_a_file_lists_everything_that_its_packages_need(source: Path) -> None:
    found = {name: pin.version for name, pin in file_pins(source).items()}
    needed = closure(list(direct(source)))
    assert needed.items() <= found.items()


def test_the_files_have_what_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {"runtime": project["dependencies"], **project["optional-dependencies"]}
    for stem, texts in named.items():
        found = file_pins(FOLDER / f"{stem}.in")
        for requirement in map(Requirement, texts):
            assert found[canonicalize_name(requirement.name)].version in requirement.specifier


def installations() -> list[tuple[str, str]]:
    """Returns every command with `pip install` in what people and programs run."""
    paths = [
        ROOT / "Makefile",
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "deploy/docker/Dockerfile",
    ]
    paths += [
        path for folder in ("docs", "scripts", ".ci") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    return [
        (str(path.relative_to(ROOT)), line.strip())
        for path in paths
        if path.suffix in ("", ".md", ".sh", ".py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if INSTALLATION.search(line)
    ]


def test_every_installation_checks_or_fetches_nothing() -> None:
    found = installations()
    assert {"Makefile", "docs/install.md", "docs/deploy.md", "deploy/docker/Dockerfile"} <= {
        name for name, _ in found
    }
    open_ones = [
        (name, line)
        for name, line in found
        if "--require-hashes" not in line and "--no-index" not in line and line not in WITHOUT_CHECKSUMS
    ]
    assert open_ones == []


def write_wheel(folder: Path) -> str:
    """Writes a small wheel and returns its checksum."""
    path = folder / "small-1-py3-none-any.whl"
    facts = "small-1.dist-info"
    with ZipFile(path, "w") as wheel:
        wheel.writestr("small.py", "")
        wheel.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1\n")
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_make_refuses_a_file_with_another_checksum(tmp_path: Path) -> None:
    digest = write_wheel(tmp_path)
    environment = tmp_path / "environment"
    listed = tmp_path / "listed.txt"

    def setup(line: str) -> subprocess.CompletedProcess[str]:
        listed.write_text(line)
        return subprocess.run(
            [
                "make",
                "setup-python",
                f"PYTHON={sys.executable}",
                f"VENV={environment}",
                f"REQUIREMENTS={listed}",
            ],
            cwd=ROOT,
            env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_NO_CACHE_DIR": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def is_installed() -> bool:
        return any(environment.glob("lib/python*/site-packages/small.py"))

    altered = ("1" if digest[0] == "0" else "0") + digest[1:]
    refused = setup(f"small==1 --hash=sha256:{altered}\n")
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr, refused.stderr
    assert altered in refused.stderr and digest in refused.stderr
    unpinned = setup("small==1\n")
    assert unpinned.returncode != 0 and "--require-hashes" in unpinned.stderr, unpinned.stderr
    assert not is_installed()
    taken = setup(f"small==1 --hash=sha256:{digest}\n")
    assert taken.returncode == 0, taken.stderr
    assert is_installed()
