"""Roles, and the identity of the person behind a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.requests import Request


class Role(StrEnum):
    """The rights of a person. An operator may do everything that a viewer may."""

    viewer = "viewer"
    operator = "operator"

    def permits(self, needed: Role) -> bool:
        return self is Role.operator or needed is Role.viewer


@dataclass(frozen=True, slots=True)
class Identity:
    """The person behind a request."""

    name: str
    role: Role
    session: str = ""
    """An id for the audit log. It opens nothing."""
    csrf: str = ""
    """The token that every change must carry."""


class Directory(Protocol):
    """Knows users and their passwords."""

    async def sign_in(self, name: str, password: str) -> Identity | None:
        """Returns the identity of the user, still without a session, or None if the password is wrong."""


def identity_of(request: Request) -> Identity:
    """Returns the identity that the middleware has found. Raises HTTPException 401 without one."""
    from starlette.exceptions import HTTPException

    identity = getattr(request.state, "identity", None)
    if not isinstance(identity, Identity):
        raise HTTPException(401, "Sign in first.")
    return identity


def require(request: Request, role: Role) -> Identity:
    """Returns the identity of the request. Raises HTTPException 403 if its role is too weak."""
    from starlette.exceptions import HTTPException

    identity = identity_of(request)
    if not identity.role.permits(role):
        raise HTTPException(403, only_for(role, identity))
    return identity


def only_for(role: Role, identity: Identity) -> str:
    """Returns the sentence for somebody whose role is too weak."""
    return (
        f"You are signed in as a {identity.role}, and only an {role} can do this. "
        "`metaq console link` makes a link for operators."
    )


def address_of(request: Request) -> str:
    """Returns the address of the peer, for the audit log. Headers of proxies are not trusted."""
    return request.client.host if request.client else ""
