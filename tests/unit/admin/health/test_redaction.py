"""Secrets are removed from everything that a bundle holds."""

from __future__ import annotations

import json

import pytest

from metaq.admin.health.redaction import redact, shown_settings, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "secretKey=hunter2hunter",
        "secret_key: hunter2hunter",
        'password = "hunter2hunter"',
        '{"accessKey":"hunter2hunter","a":1}',
        "etcd://me:hunter2hunter@10.0.0.1:2379",
        "token=hunter2hunter&x=1",
        "the word hunter2hunter itself",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    cleaned = redact(text, ["hunter2hunter"] if "itself" in text else [])
    assert "hunter2hunter" not in cleaned and "(removed)" in cleaned


def test_other_words_stay_and_json_stays_json() -> None:
    assert redact("the key of topic T: 5 messages") == "the key of topic T: 5 messages"
    cleaned = json.loads(redact('{"secretKey": "x y", "token": 5, "keys": ["a"], "url": "etcd://u:p@h:1"}'))
    assert cleaned == {
        "secretKey": "(removed)",
        "token": "(removed)",
        "keys": ["a"],
        "url": "etcd://(removed)@h:1",
    }


def test_settings_outside_the_list_lose_their_values() -> None:
    settings = {"brokerName": "a", "secretKey": "s", "initAuthenticationUser": "u", "newSetting": "x"}
    assert shown_settings(settings) == {
        "brokerName": "a",
        "secretKey": "(removed)",
        "initAuthenticationUser": "(removed)",
        "newSetting": "(removed)",
    }
    assert shown_settings({"aKey": "s"}, ["aKey"]) == {"aKey": "(removed)"}, "the name decides as well"


def test_a_short_secret_does_not_shred_texts() -> None:
    assert redact("a broker", ["a"]) == "a broker"


def test_operators_see_all_settings_but_no_secrets() -> None:
    values = {
        "fileReservedTime": "72",
        "aclSecretKey": "hunter2",
        "registerAddress": "etcd://me:hunter2@host",
    }
    assert without_secrets(values) == {
        "fileReservedTime": "72",
        "aclSecretKey": None,
        "registerAddress": "etcd://(removed)@host",
    }


@pytest.mark.parametrize("word", ["a", "secret", "token-", 'x="', "k:'", "token \t"])
def test_texts_of_any_length_take_one_pass(word: str) -> None:
    """Backtracking would make this a matter of hours."""
    text = word * (1_000_000 // len(word))
    assert len(redact(text)) > 100


def test_a_secret_behind_another_name_is_found() -> None:
    assert redact("url: token=abc my.secretKey.x = abc token-abc:abc") == (
        "url: token=(removed) my.secretKey.x = (removed) token-abc:(removed)"
    )
