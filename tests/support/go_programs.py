"""Programs in Go: our own, built from a folder, and tools, built from a published module."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from tests.support.processes import find_tool

BUILD_TIMEOUT_S = 1200
HELM = (Path(__file__).parents[1] / "integration" / "deploy" / "helm", "helm.sh/helm/v3/cmd/helm")
"""The last release that Debian's Go 1.19 compiles."""


def go_program(folder: Path, name: str) -> Path:
    """Returns the program of a folder; builds it unless that was done before, with the same sources."""
    total = hashlib.sha256()
    for file in (*sorted(folder.glob("*.go")), folder / "go.mod", folder / "go.sum"):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    program = folder / "target" / f"{name}-{total.hexdigest()[:16]}"
    if not program.exists():
        fresh = program.with_name(f".{program.name}-{os.getpid()}")
        _run("build", "-buildvcs=false", "-o", str(fresh), ".", directory=folder)
        fresh.replace(program)
    return program


def go_tool(folder: Path, package: str) -> Path:
    """Returns a tool, kept outside the repository because it takes minutes to build.

    The folder's go.mod has its version, and go.sum the checksums of all its modules.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq" / "tools"
    name = package.rpartition("/")[2]
    program = cache / f"{name}-{_version(folder, package)}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            _run("build", "-buildvcs=false", "-o", str(Path(fresh) / name), package, directory=folder)
            (Path(fresh) / name).replace(program)
    return program


def _version(folder: Path, package: str) -> str:
    """Returns the version of the module that has the package, from go.mod."""
    for module, version in re.findall(r"(?m)^require (\S+) (\S+)$", (folder / "go.mod").read_text()):
        if package.startswith(f"{module}/"):
            return str(version)
    raise RuntimeError(f"{folder.name}/go.mod does not require the module of {package}")


def _run(*arguments: str, directory: Path) -> None:
    done = subprocess.run(
        [find_tool("go", "Go (Debian: golang-go)"), *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"go {arguments[0]} failed in {directory.name}/:\n{done.stdout[-4000:]}")
