"""The archive that executors get: how it is written, read and refused."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import metaq
from metaq.cli import app
from metaq.spark import packing
from metaq.spark.environment import MANIFEST, UNPACKED, Manifest, read_manifest, with_environment
from metaq.spark.errors import SparkError
from metaq.spark.packing import Entry, pack


def write(archive: Path, content: bytes, name: str = MANIFEST) -> Path:
    with tarfile.open(archive, "w:gz") as packed:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        packed.addfile(info, io.BytesIO(content))
    return archive


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs two files only: a whole environment takes seconds."""
    entries = [Entry(MANIFEST, None, Manifest.here().encoded()), Entry("bin/python", None, b"#!", True)]
    monkeypatch.setattr(packing, "_entries", lambda packages: (entries, ()))


@pytest.mark.usefixtures("few_files")
def test_the_command_prints_size_and_checksum(tmp_path: Path) -> None:
    file = tmp_path / "environment.tar.gz"
    done = CliRunner().invoke(app, ["spark", "pack", str(file), "-o", "json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert printed["bytes"] == file.stat().st_size
    assert printed["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (printed["metaq"], printed["files"]) == (metaq.__version__, 2)
    assert "packing" in done.stderr and "MiB" in done.stderr
    assert read_manifest(file) == Manifest.here()
    assert list(tmp_path.iterdir()) == [file]
    with tarfile.open(file) as packed:
        assert packed.getmember("bin/python").mode == 0o755


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "is full; environment.tar.gz was not written"), (errno.EIO, "Input/output error")],
)
def test_a_failure_leaves_the_old_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    file = tmp_path / "environment.tar.gz"
    file.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packing.os, "fsync", fail)
    with pytest.raises(SparkError, match=message):
        pack(file)
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("few_files")
def test_a_full_disk_is_named() -> None:
    """The device refuses every byte, as a full disk does."""
    with (
        pytest.raises(OSError, match="No space") as raised,
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        packing._write(packing._Checked(full), packing._entries(())[0], lambda done, total: None)
    assert "is full" in str(packing._unwritable(Path("/data/e.tar.gz"), raised.value))


@pytest.mark.usefixtures("few_files")
def test_a_draft_of_a_killed_run_is_replaced_and_one_of_a_running_one_is_not(tmp_path: Path) -> None:
    file, draft = tmp_path / "environment.tar.gz", tmp_path / ".environment.tar.gz.part"
    draft.write_bytes(b"torn" * 1000)
    with draft.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SparkError, match="another `metaq spark pack` writes"):
            pack(file)
    assert draft.exists() and not file.exists()
    pack(file)
    assert read_manifest(file) == Manifest.here() and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["environment.zip", "a#b.tar.gz", "a,b.tar.gz"])
def test_a_name_that_spark_misreads_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SparkError, match=r"ends in \.tar\.gz"):
        pack(tmp_path / name)
    with pytest.raises(SparkError, match=r"ends in \.tar\.gz"):
        with_environment({}, f"s3a://bucket/{name}")


def test_an_unknown_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="package no-such-package is not installed"):
        pack(tmp_path / "environment.tar.gz", packages=["no-such-package"])
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_an_environment_are_an_interpreter_with_its_packages() -> None:
    """The test of a cluster runs one."""
    entries, left_out = packing._entries(["pyarrow"])
    names = {entry.name for entry in entries}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert entries[0].name == MANIFEST and left_out == ()
    assert {"bin/python", f"lib/{version}/os.py"} <= names
    packages = next(
        name.removesuffix("metaq/__init__.py") for name in names if name.endswith("/metaq/__init__.py")
    )
    assert {f"{packages}{name}/__init__.py" for name in ("pyarrow", "pandas", "numpy", "msgspec")} <= names
    assert not [name for name in names if name.startswith((f"{packages}pyspark/", f"{packages}py4j/"))]
    assert not [name for name in names if ".." in name or name.startswith("/")]
    start = next(entry for entry in entries if entry.name == "bin/python")
    assert subprocess.run(["sh", "-n"], input=start.content).returncode == 0


def test_executors_get_the_archive_and_its_python(tmp_path: Path) -> None:
    archive = write(tmp_path / "e.tar.gz", Manifest.here().encoded())
    found = with_environment({"spark.archives": "other.zip", "a": "b"}, str(archive))
    assert found == {
        "a": "b",
        "spark.archives": f"other.zip,{archive}#{UNPACKED}",
        "spark.pyspark.python": f"./{UNPACKED}/bin/python",
    }
    assert with_environment({}, "s3a://bucket/e.tgz")["spark.archives"] == f"s3a://bucket/e.tgz#{UNPACKED}"
    with pytest.raises(SparkError, match="both name the Python of executors"):
        with_environment({"spark.pyspark.python": "/usr/bin/python3"}, str(archive))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (Manifest(metaq.__version__, "3.6.1", "linux-x86_64"), r"holds Python 3\.6\.1, but this is Python 3"),
        (
            Manifest("0.0.1", Manifest.here().python, "linux-x86_64"),
            r"holds MetaQ 0\.0\.1, but this is MetaQ",
        ),
    ],
)
def test_an_archive_that_does_not_fit_is_refused(tmp_path: Path, manifest: Manifest, message: str) -> None:
    archive = write(tmp_path / "e.tar.gz", manifest.encoded())
    with pytest.raises(SparkError, match=message):
        with_environment({}, f"file://{archive}")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "e.tar.gz"
    with pytest.raises(SparkError, match="No such file"):
        read_manifest(archive)
    whole = write(archive, Manifest.here().encoded()).read_bytes()
    for content in (b"", b"text", whole[:40]):
        archive.write_bytes(content)
        with pytest.raises(SparkError, match="is not a packed environment that can be read"):
            read_manifest(archive)
    for manifest in (b"[]", b"{}", b'{"metaq": 1}', b"{", b'{"a": "b"}', b"\xff"):
        with pytest.raises(SparkError, match="is not a packed environment that can be read"):
            read_manifest(write(archive, manifest))
    with pytest.raises(SparkError, match="does not begin with a manifest"):
        read_manifest(write(archive, b"{}", "bin/python"))
