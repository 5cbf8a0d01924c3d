"""The Go programs that check deploy/: Helm, and parsers of Docker and Kubernetes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.go_programs import HELM, go_program, go_tool

GO = Path(__file__).parent / "go"
TIMEOUT_S = 120


def build() -> None:
    """Builds everything, which takes minutes the first time."""
    go_program(GO, "containers")
    go_tool(*HELM)


def read(kind: str, file: Path) -> Any:
    """Returns what the owner's parser reads from a `dockerfile`, `compose` or `kubernetes` file."""
    done = _run(go_program(GO, "containers"), kind, str(file))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(go_tool(*HELM), *arguments)


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
