"""All actions by their names."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.console.actions import (
    cluster,
    dead_letters,
    group_moves,
    groups,
    links,
    messages,
    topic_settings,
    topics,
    waiting,
)
from metaq.console.actions.action import Action

MODULES = (
    dead_letters,
    group_moves,
    cluster,
    links,
    groups,
    messages,
    topic_settings,
    topics,
    waiting,
)

ACTIONS: Mapping[str, Action] = {action.name: action() for module in MODULES for action in module.ACTIONS}
