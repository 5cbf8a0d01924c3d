"""Strangers at the replication port."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from metaq.broker.replication.link_port import HANDSHAKES_MAX, LinkPort


def test_held_handshakes_make_room_for_new_ones() -> None:
    async def main() -> None:
        options: Any = SimpleNamespace(host="127.0.0.1", port=0, handshake_timeout_ms=60_000, key=b"k" * 32)
        host: Any = SimpleNamespace(identity=None, checksum=None)

        async def admitted(*_: object) -> None:
            raise AssertionError("nobody has the key")

        port = LinkPort(options, host, admitted)
        try:
            crowd = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(HANDSHAKES_MAX + 4)]
            async with asyncio.timeout(20):
                # The oldest ends, long before its deadline; the newest is served.
                assert await crowd[0][0].read() == b""
            newest = asyncio.create_task(crowd[-1][0].read())
            done, _ = await asyncio.wait([newest], timeout=0.5)
            assert not done
            newest.cancel()
            for _, writer in crowd:
                writer.close()
        finally:
            async with asyncio.timeout(20):
                await port.stop()

    asyncio.run(main())
