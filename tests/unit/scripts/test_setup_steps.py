"""`make setup-test` fetches programs of others while the native module is built: nothing may import metaq."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STEPS_BEFORE_THE_BUILD = ("java-peers", "go-peers", "spark-peers")


def imported_modules(step: str) -> list[str]:
    """Returns the modules that the commands of a step of the Makefile import."""
    recipe = re.search(rf"^{step}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe, f"the Makefile has no step {step}"
    return re.findall(r"(?:from|python -m) (tests\.[\w.]+)", recipe[1])


@pytest.mark.parametrize("step", STEPS_BEFORE_THE_BUILD)
def test_no_step_before_the_build_imports_metaq(step: str) -> None:
    modules = imported_modules(step)
    assert modules
    block_metaq = "import sys; sys.modules['metaq'] = None\n"
    imports = "\n".join(f"import {module}" for module in modules)
    done = subprocess.run(
        [sys.executable, "-c", block_metaq + imports], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
