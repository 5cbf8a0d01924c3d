"""The switches and options that an operator may change on a running name server; all others stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.routes import GetNameServerConfig, UpdateNameServerConfig
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.handling.process_options import NAMES as PROCESS_OPTIONS
from metaq.protocol.handling.process_options import ProcessOptions

_TEXT_BYTES_MAX: Final = 64 * 1024


@dataclass(slots=True)
class Switches:
    """Every key that may be set while the name server runs. Each is on or off."""

    order_message_enable: bool = True
    """Send clients the fixed queue list of an ordered topic, if one is configured."""
    support_acting_master: bool = True
    """Show a replica as master if its broker allows that and the master is gone."""
    delete_topic_with_broker_registration: bool = False
    """Forget a topic that a full registration of its master no longer names."""


_WIRE_NAMES: Final = {
    "".join(word if i == 0 else word.title() for i, word in enumerate(field.name.split("_"))): field.name
    for field in fields(Switches)
}


class Options:
    """The switches, and the two commands that read and set them as properties text."""

    def __init__(self, listen_address: str, process: ProcessOptions) -> None:
        self.switches = Switches()
        self._process = process
        self._listen_address = listen_address

    @handles(GetNameServerConfig)
    def get_name_server_config(self, command: GetNameServerConfig, request: Request) -> Response:
        host, _, port = self._listen_address.rpartition(":")
        lines = [f"bindAddress={host}", f"listenPort={port}"]
        for wire_name, name in _WIRE_NAMES.items():
            lines.append(f"{wire_name}={'true' if getattr(self.switches, name) else 'false'}")
        lines += [f"{name}={value}" for name, value in self._process.values().items()]
        return Response(body=("\n".join(lines) + "\n").encode())

    @handles(UpdateNameServerConfig)
    def update_name_server_config(self, command: UpdateNameServerConfig, request: Request) -> None:
        # All or nothing: every line is checked before the first is applied.
        changes = [self._change_of(key, value) for key, value in _properties(request.body).items()]
        for apply in changes:
            apply()

    def _change_of(self, key: str, value: str) -> Callable[[], None]:
        if key in PROCESS_OPTIONS:
            return self._process.change_of(key, value)
        name, is_on = _allowed(key), _switch(key, value)
        return lambda: setattr(self.switches, name, is_on)


def _properties(body: bytes) -> dict[str, str]:
    if len(body) > _TEXT_BYTES_MAX:
        raise ProtocolError(f"the configuration is longer than {_TEXT_BYTES_MAX} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise ProtocolError("the configuration is not UTF-8 text") from None
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ProtocolError(f"line {number} of the configuration is not of the form key=value")
        properties[key.strip()] = value.strip()
    return properties


def _allowed(key: str) -> str:
    name = _WIRE_NAMES.get(key)
    if name is None:
        changeable = ", ".join((*_WIRE_NAMES, *PROCESS_OPTIONS))
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"{key[:64]!r} may not be set on a running name server; these may: {changeable}",
        )
    return name


def _switch(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ProtocolError(f"{key} must be true or false, not {value[:64]!r}")
    return value.lower() == "true"
