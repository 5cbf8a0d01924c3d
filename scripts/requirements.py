"""Writes requirements/*.txt from requirements/*.in: every package with its version and its checksums.

    scripts/requirements.py [--upgrade-package NAME …]

A direct requirement has its version in an .in file. The packages it brings along keep the version that the
.txt files have, unless it no longer fits or you name the package. All files agree on the version of a
package, because one resolution of everything comes first. The checksums are those of all wheels and of the
source archive, so the files serve every Python from 3.11 on and every processor.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
TIMEOUT_S = 900
PIN = re.compile(r"^[A-Za-z0-9][\w.-]*==[^\s;\\]+", re.MULTILINE)


def compile_file(output: Path, inputs: Sequence[Path], *options: str) -> None:
    """Runs uv. Packages that `output` has already keep their version if it fits."""
    command = [
        *(str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--universal"),
        *("--python-version", OLDEST_PYTHON, "--no-emit-index-url", "--no-emit-find-links"),
        *("--custom-compile-command", "make requirements", "--annotation-style", "line"),
        *("--output-file", str(output), *options),
        *(str(path.relative_to(ROOT)) for path in inputs),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)


def write_all(options: Sequence[str]) -> None:
    """Writes every file, or none if one of them cannot be resolved."""
    sources = sorted(FOLDER.glob("*.in"))
    known = {pin for path in FOLDER.glob("*.txt") for pin in PIN.findall(path.read_text(encoding="utf-8"))}
    # Beside the final place, so that each file is replaced at once.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=FOLDER) as folder:
        together = Path(folder) / "together"
        together.write_text("".join(f"{pin}\n" for pin in sorted(known)), encoding="utf-8")
        compile_file(together, sources, *options)
        written = {source.with_suffix(".txt"): Path(folder) / f"{source.stem}.txt" for source in sources}
        for source, fresh in zip(sources, written.values(), strict=True):
            # Without the old checksums: uv would keep them, and add none for a wheel that came later.
            shutil.copy(together, fresh)
            compile_file(fresh, [source], "--generate-hashes")
        for target, fresh in written.items():
            fresh.replace(target)


def main() -> int:
    try:
        write_all(sys.argv[1:])
    except (OSError, subprocess.SubprocessError) as error:
        print(f"requirements/*.txt stay as they are: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
