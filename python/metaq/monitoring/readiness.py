"""Whether a broker can do its work, check by check."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.broker import Broker


@dataclass(frozen=True, slots=True)
class Check:
    """One condition for being ready."""

    name: str
    fault: str | None
    """The reason why it does not hold; None if it does."""


def check_broker(broker: Broker) -> list[Check]:
    """Checks that the broker has a role, is known to a name server, and can store what it is given."""
    role = broker.role
    if role is None:
        return [Check("recovered", "the broker starts, or changes its role")]
    return [
        Check("recovered", None),
        Check("registered", registration_fault(broker.options.nameservers, role.registration.registered)),
        Check("writable", broker.store.write_fault() if broker.is_master else None),
    ]


def registration_fault(nameservers: Sequence[str], registered: Collection[str]) -> str | None:
    """Returns why clients cannot find the broker. One name server is enough for them."""
    if not nameservers:
        return "no name server is set, so no client can find this broker; set one with --namesrv"
    if not registered:
        return f"no name server has taken the registration: {', '.join(nameservers)}"
    return None


def describe(checks: list[Check]) -> tuple[bool, str]:
    """Whether all checks hold, and a line for each of them."""
    lines = [f"{check.name}: {check.fault or 'ok'}" for check in checks]
    return all(check.fault is None for check in checks), "".join(f"{line}\n" for line in lines)
