"""Random tests: how often they kill, and the seed that repeats a run.

A kill loop kills few times in `make test` and many times in `make soak`. Mark such a test with `kill_loop`.
`make soak` sets METAQ_LONG=1 and runs the marked tests; `tests/conftest.py` gives them more time then.
"""

from __future__ import annotations

import os
import random

import pytest

LONG = os.environ.get("METAQ_LONG", "") not in ("", "0")
LONG_TIMEOUT_S = 3 * 3600
kill_loop = pytest.mark.kill_loop
soak = pytest.mark.soak
"""Leaves a test, or one of its parameters, to `make soak`."""


def rounds(short: int, long: int) -> int:
    return long if LONG else short


def draw_seed() -> int:
    """Returns METAQ_SEED or a random seed, and prints it: pytest shows it with a failure."""
    seed = int(os.environ.get("METAQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"METAQ_SEED={seed}")
    return seed


def seeded() -> random.Random:
    return random.Random(draw_seed())
