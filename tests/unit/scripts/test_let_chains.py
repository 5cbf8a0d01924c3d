"""scripts/let_chains.py finds Rust syntax that is newer than the minimum version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

from tests.support.scripts import SCRIPTS, load_script


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return load_script("let_chains")


@pytest.mark.parametrize(
    "condition",
    [
        "if let Some(x) = a && b",
        "if a && let Some(x) = b",
        "while a\n    && let Some(x) = b()\n",
        "if let Some(x) = a && let Some(y) = x",
        "if let Some(x) = unsafe { a() } && b",
        'if name == "if (" && let Some(x) = b',
        "if a == '{' && let Some(x) = b",
        "if let Some(x) = a // a comment {\n    && b",
    ],
)
def test_it_finds_chains(checker: ModuleType, condition: str) -> None:
    assert list(checker.let_chains(f"fn f<'a>() {{\n    {condition} {{ return; }}\n}}\n")) == [2]


@pytest.mark.parametrize(
    "code",
    [
        "if let Some(x) = a { }",
        "if a && b { let c = d && e; }",
        "if let Some(x) = a.filter(|x| b && c) { }",
        "if let Some(&&x) = a { let y = 1; } else if b && c { }",
        "if let &&x = a { }",
        "while let Some(x) = a() { if b && c { } }",
        "let x = if a && b { 1 } else { 2 };",
        "match x { Some(y) if a && b => { let z = y; } _ => {} }",
        'let text = "if let Some(x) = a && b { }";',
        'let text = r#"if let Some("x") = a && b { }"#;',
        "// if let Some(x) = a && b { }",
        "let Some(x) = a else { return b && c };",
        "if matches!(a, B { c }) && d { let e = 1; }",
    ],
)
def test_other_conditions_pass(checker: ModuleType, code: str) -> None:
    assert list(checker.let_chains(f"fn f<'a>() {{ {code} }}\n")) == []


def test_the_repository_keeps_to_its_minimum_version() -> None:
    with (SCRIPTS.parent / "Cargo.toml").open("rb") as manifest:
        assert tomllib.load(manifest)["workspace"]["package"]["rust-version"] == "1.85"
    outcome = subprocess.run([sys.executable, SCRIPTS / "let_chains.py"], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stdout) == (0, "")
