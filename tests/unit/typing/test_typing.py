"""Programs of users under strict mypy and pyright: right ones pass, and every mistake is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = Path(__file__).parent / "samples"
MARK = "# wrong"


def marked() -> set[int]:
    lines = (SAMPLES / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith(MARK)}


def check(found: Counter[tuple[str, int]], output: str) -> None:
    assert {place for place in found if place[0] == "right.py"} == set(), output
    assert {line for name, line in found if name == "wrong.py"} == marked(), output


def test_mypy(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--config-file",
        "",
        str(SAMPLES),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True
    )
    found = re.findall(r"^(?:.*/)?(\w+\.py):(\d+): error: ", done.stdout, re.MULTILINE)
    check(Counter((name, int(line)) for name, line in found), done.stdout + done.stderr)


def test_pyright(tmp_path: Path) -> None:
    settings = {
        "include": [str(SAMPLES)],
        "extraPaths": [str(ROOT / "python")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    found = Counter(
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in diagnostics
        if each["severity"] == "error"
    )
    check(found, json.dumps(diagnostics, indent=1))
