"""Apache slaves behind this master: the way back to Apache's broker.

They copy everything that is confirmed and are never waited for. They find the port through the name servers
(`haServerAddr` of a registration), and read topics, groups, offsets and delay progress with ordinary
requests. Apache 5.5.0 ignores `haMasterAddress` in a slave's broker.conf: it sets the address before the
part exists that would use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from metaq._core import ApacheHaMaster, ApacheSlaveFigures, LinkListener, Store

_log = logging.getLogger(__name__)

SILENCE_MS = 20_000
"""As long as Apache waits for its peers (`haHousekeepingInterval`)."""


class ApacheSlaves:
    """The port of `apache_ha_listen` and the slaves that are connected to it. Nobody can tell who they are,
    so no one else may be able to reach the port."""

    def __init__(self, listen: str, store: Store, *, bytes_per_second: int = 0) -> None:
        """`bytes_per_second` limits what each slave gets; 0 means no limit. Raises OSError."""
        self._listener: LinkListener | None = LinkListener(listen, SILENCE_MS)
        self.port = self._listener.port
        self._master = ApacheHaMaster(store, silence_ms=SILENCE_MS, bytes_per_second=bytes_per_second)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Lets slaves in from now on. Raises RuntimeError after `stop`."""
        if self._listener is None:
            raise RuntimeError("the port for Apache slaves is closed")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._accept, self._listener)
        self._loop.add_reader(self._master.fileno(), self.links)

    async def stop(self) -> None:
        """Closes the port and ends all links. Safe to call twice."""
        loop, self._loop = self._loop, None
        # Without a reference it is closed, and the next master of this broker can bind the port.
        listener, self._listener = self._listener, None
        if loop is not None and listener is not None:
            loop.remove_reader(listener.fileno())
            loop.remove_reader(self._master.fileno())
        del listener
        await asyncio.to_thread(self._master.stop)

    def links(self) -> Sequence[ApacheSlaveFigures]:
        """Returns the slaves that are connected."""
        links = self._master.links()
        for link in links:
            if link.closed is not None:
                _log.warning("the link to the Apache slave %s was closed: %s", link.remote, link.closed)
        return [link for link in links if link.closed is None]

    def _accept(self, listener: LinkListener) -> None:
        try:
            socket = listener.accept()
        except OSError as error:
            _log.warning("an Apache slave could not connect: %s", error)
            return
        if socket is None:
            return
        try:
            self._master.add_link(socket)
        except OSError as error:
            _log.warning("the Apache slave %s was turned away: %s", socket.remote, error)
        else:
            _log.info("the Apache slave %s has connected", socket.remote)
