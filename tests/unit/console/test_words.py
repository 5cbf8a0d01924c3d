"""Every word of the console exists in both languages, and every word that a page uses exists."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

import metaq.console
from metaq.admin import health
from metaq.admin.health.findings import NODE_WORDS
from metaq.console.actions.table import ACTIONS
from metaq.console.words import LANGUAGES, catalog, chosen_language, word

FOLDER = Path(metaq.console.__file__).parent
USED = re.compile(r"""\bt\(\s*["']([a-z_]+\.[a-z0-9_]+)["']\s*[,)]""")


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_have_the_same_words_with_the_same_fields() -> None:
    english, chinese = catalog("en"), catalog("zh")
    # The health check itself writes the English sentences.
    translated = {key for key in chinese if not key.startswith("finding_sentences.")}
    assert english.keys() == translated
    assert not [key for key in english if fields(english[key]) != fields(chinese[key])]


def test_words_that_differ_only_in_name_are_translated() -> None:
    english, chinese = catalog("en"), catalog("zh")
    same = {key: text for key, text in english.items() if chinese[key] == text}
    # Names of things that Chinese engineers call by their English names.
    assert all(not re.search(r"[a-z]{2,} [a-z]{2,}", text) for text in same.values()), same


REPLACED = {
    "消费组": "消费者组",
    "定时消息": "延时消息",
    "延迟": "延时",
    "主备": "主从",
    "备节点": "从节点",
    "名称服务器": "NameServer",
    "偏移量": "位点",
    "管理员": "操作员",
    "应答": "响应",
    "读出": "消费",
    "纪元": "任期（epoch）",
    "标签": "Tag",
}
"""Chinese words that mean the same as another one, which is used everywhere."""


def test_chinese_has_one_word_for_one_thing() -> None:
    readme = Path(__file__).parents[3] / "README.zh-CN.md"
    texts = {**catalog("zh"), "README.zh-CN.md": readme.read_text("utf-8")}
    found = [(key, word, REPLACED[word]) for key, text in texts.items() for word in REPLACED if word in text]
    assert not found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_word_that_a_template_or_a_page_uses_exists(language: str) -> None:
    known = catalog("zh" if language == "zh" else "en")
    files = [*FOLDER.rglob("*.html"), *FOLDER.rglob("*.py")]
    assert len(files) > 20
    missing = {
        f"{file.name}: {key}" for file in files for key in USED.findall(file.read_text()) if key not in known
    }
    assert not missing


def test_every_action_has_a_title_and_a_button() -> None:
    for name in ACTIONS:
        key = name.replace("-", "_")
        assert f"actions.{key}" in catalog("en")
        assert f"actions.apply_{key}" in catalog("en")


def test_every_kind_of_finding_has_a_name_and_a_chinese_sentence() -> None:
    calls = [
        call
        for path in Path(health.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    arguments = [call.args[1] for call in calls if call.func.id == "Finding"]  # type: ignore[attr-defined]
    arguments += [call.args[0] for call in calls if call.func.id == "_of_group"]  # type: ignore[attr-defined]
    kinds = {str(argument.value) for argument in arguments if isinstance(argument, ast.Constant)}
    assert {"no-consumers", "disk-unknown"} <= kinds
    kinds |= {f"node-{state.replace(' ', '-')}" for state in NODE_WORDS}
    keys = {kind.replace("-", "_") for kind in kinds}
    assert {f"findings.{key}" for key in keys} <= catalog("en").keys()
    assert {f"finding_sentences.{key}" for key in keys} <= catalog("zh").keys()


def test_a_word_has_its_fields_filled_in() -> None:
    assert word("en", "common.ago", {"span": "3 s"}) == "3 s ago"
    assert word("zh", "common.ago", {"span": "3 s"}) == "3 s 前"


def test_nouns_and_verbs_agree_with_their_number() -> None:
    fields = {"warnings": 1, "answering": 1, "brokers": 1, "critical": 0}
    assert word("en", "overview.one_warnings", fields) == "The broker answers. 1 finding is worth a look."
    many = word("en", "overview.one_warnings", {**fields, "warnings": "1,024"})
    assert many == "The broker answers. 1,024 findings are worth a look."


@pytest.mark.parametrize(
    ("cookie", "accepted", "expected"),
    [
        (None, "", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de-DE, en;q=0.5", "en"),
        (None, "fr", "en"),
        ("zh", "en", "zh"),
        ("en", "zh-CN", "en"),
        ("<script>", "zh", "zh"),
    ],
)
def test_the_language_of_a_reader(cookie: str | None, accepted: str, expected: str) -> None:
    assert chosen_language(cookie, accepted) == expected
