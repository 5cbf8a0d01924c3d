"""The action that makes a sign-in link for somebody else."""

from __future__ import annotations

import asyncio
import shlex

from metaq.console.access.links import EXPIRY_S
from metaq.console.access.roles import Role
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.place import link_with
from metaq.console.rendering import url_of


class CreateLink(Action):
    """Makes a link that signs in one person. It is shown once and is in no log."""

    name = "create-link"
    form = "actions/create_link.html"

    def target(self, call: Call) -> str:
        return call.field("role")

    async def preview(self, call: Call) -> Preview:
        role = _role(call)
        words = ["metaq", "console", "link", *(["--viewer"] if role is Role.viewer else [])]
        words += ["--state", str(call.console.settings.state_folder)]
        sentence = call.t(
            "actions.create_link_effect", role=call.t(f"common.role_{role}"), minutes=round(EXPIRY_S / 60)
        )
        return Preview(shlex.join(words), sentence, basis=[role.value])

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        token = await asyncio.to_thread(call.console.access.links.create, _role(call))
        return Outcome(call.t("actions.create_link_done"), secret=link_with(_address(call), token))


def _role(call: Call) -> Role:
    try:
        return Role(call.required("role"))
    except ValueError as error:
        raise FormError(call.t("actions.required", field=call.t("actions.field_role"))) from error


def _address(call: Call) -> str:
    """Returns the address of the console as the person who asks sees it. A proxy in front may hide it."""
    settings, url = call.console.settings, call.request.url
    if settings.public_url:
        return f"{settings.public_url}/"
    scheme = "https" if settings.secure_cookies else url.scheme
    return f"{scheme}://{url.netloc}{url_of(call.request, '/')}"


ACTIONS = (CreateLink,)
