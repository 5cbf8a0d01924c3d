"""Programs in Go: our own, built from a folder, and tools, built from a published module."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.processes import find_tool

BUILD_TIMEOUT_S = 1200
HELM = ("helm.sh/helm/v3/cmd/helm", "v3.12.3")
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


def go_tool(module: str, version: str) -> Path:
    """Returns a tool of a module, kept outside the repository because it takes minutes to build."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq" / "tools"
    program = cache / f"{module.rpartition('/')[2]}-{version}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            _run("install", f"{module}@{version}", directory=cache, GOBIN=fresh)
            (Path(fresh) / module.rpartition("/")[2]).replace(program)
    return program


def _run(*arguments: str, directory: Path, **variables: str) -> None:
    done = subprocess.run(
        [find_tool("go", "Go (Debian: golang-go)"), *arguments],
        cwd=directory,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"go {arguments[0]} failed in {directory.name}/:\n{done.stdout[-4000:]}")
