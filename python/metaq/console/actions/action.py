"""The parts of an action: its call, its preview and its outcome."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request

from metaq.console.access.roles import Identity, Role
from metaq.console.console import Console
from metaq.console.rendering import command_line, words_of


class FormError(ValueError):
    """A field of the form that cannot be used; the text is for the person who filled it in."""

    def __init__(self, text: str, *, path: str = "") -> None:
        """`path` is the page that shows the reason."""
        super().__init__(text)
        self.path = path


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an action: who asks, and the fields of the form."""

    request: Request
    console: Console
    identity: Identity
    form: Mapping[str, str]
    selected: tuple[str, ...] = ()
    """The values of all fields called `selected`, such as rows of a table."""

    def field(self, name: str, otherwise: str = "") -> str:
        return self.form.get(name, otherwise).strip()

    def required(self, name: str) -> str:
        value = self.field(name)
        if not value:
            raise FormError(self.t("actions.required", field=self.t(f"actions.field_{name}")))
        return value

    def number(self, name: str, least: int, most: int) -> int | None:
        """Returns a number, or None if the field is empty."""
        text = self.field(name)
        if not text:
            return None
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            field = self.t(f"actions.field_{name}")
            raise FormError(self.t("actions.not_in_range", field=field, value=text, least=least, most=most))
        return value

    def t(self, key: str, **fields: object) -> str:
        return words_of(self.request, key, **fields)

    def command(self, *words: str) -> str:
        """Returns the command line that does the same, with the name servers if they are not the default."""
        return command_line(self.console.settings.nameservers, *words)


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of an action before it is applied."""

    command: str
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    rows_total: int | None = None
    """All rows, if `rows` has only the first."""
    basis: object = None
    """The facts that must still be true when the action is applied, as JSON has them."""
    typed_name: str | None = None
    """The name that a person must type, because the action destroys what has it."""
    warnings: tuple[str, ...] = ()
    loses_messages: bool = False
    """Whether somebody would miss messages although nothing is destroyed: the button is red."""
    shown_count: int | None = None
    """A number that may become smaller until the action is applied. The form sends it back as a field."""
    compared: tuple[str, str] | None = None
    """A text before and after, to be shown side by side."""
    copied: str | None = None
    """A text that somebody may want to copy, such as the whole id of a message."""
    plan: object = None
    """Everything else that `apply` needs. The fingerprint leaves it out."""

    @property
    def fingerprint(self) -> str:
        """A digest of the command and the basis."""
        text = json.dumps([self.command, self.basis], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of an action after it was applied."""

    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    failed: int = 0
    """How many rows failed."""
    path: str | None = None
    """The page to look at next."""
    secret: str | None = None
    """A text that is shown once, such as a link that signs somebody in. It is in no log."""
    job: str | None = None
    """The id of the work that goes on, which `/jobs/ID` shows."""


class Action(ABC):
    """A change that a person can make."""

    name: ClassVar[str]
    """Its address is `/actions/NAME`; its title is the word `actions.NAME`, with underscores for hyphens."""
    form: ClassVar[str | None] = None
    """The template of its fields; None if there is nothing to choose, so that the preview comes first."""
    role: ClassVar[Role] = Role.operator

    async def choices(self, call: Call) -> dict[str, object]:
        """Returns variables for the template of the form."""
        return {}

    @abstractmethod
    def target(self, call: Call) -> str:
        """Returns the name of the thing that is changed, for the audit log."""

    @abstractmethod
    async def preview(self, call: Call) -> Preview:
        """Returns the effect; changes nothing."""

    @abstractmethod
    async def apply(self, call: Call, preview: Preview) -> Outcome:
        """Makes the change that was previewed."""
