"""The face for asyncio, where all the work is done."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from metaq.client.consumers_aio import Consuming
from metaq.client.handling import CLOSE_TIMEOUT_S
from metaq.client.message import BODY_BYTES_MAX, COMPRESS_FROM_BYTES
from metaq.client.options import KIB, MIB, ProducerOptions
from metaq.client.producer import Producer
from metaq.client.results import SendStatus
from metaq.client.session import Session
from metaq.errors import NotDelivered

DEFAULT_GROUP = "metaq"


class Client(Consuming):
    """A client of a cluster, named by its name servers: `host:port`, several separated by semicolons.

    It belongs to the event loop in which it is started:

        async with metaq.aio.Client("127.0.0.1:9876") as client: …
    """

    def __init__(self, nameservers: str = "127.0.0.1:9876", *, client_id: str | None = None) -> None:
        super().__init__()
        self._session = Session(nameservers, client_id=client_id)
        self._producers: set[Producer] = set()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    def producer(
        self,
        group: str = DEFAULT_GROUP,
        *,
        timeout: float = 15.0,
        attempt_timeout: float = 6.0,
        accept: Iterable[SendStatus | str] = (),
        body_bytes_max: int = BODY_BYTES_MAX,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        linger: float = 0.002,
        batch_bytes_max: int = 256 * KIB,
        buffer_bytes_max: int = 32 * MIB,
    ) -> Producer:
        """A producer of that group; a context manager, which ends with its client at the latest.

        `timeout` is for a send with all its tries, `attempt_timeout` for one of them. `accept` names what is
        no error besides a message that is stored as it should be: flush-timeout, replica-missing or
        replica-timeout. `linger`, `batch_bytes_max` and `buffer_bytes_max` are for `send_soon`.
        """
        options = ProducerOptions(
            group,
            timeout_s=timeout,
            attempt_timeout_s=attempt_timeout,
            accept=SendStatus.all_of(accept),
            body_bytes_max=body_bytes_max,
            compress_from_bytes=compress_from_bytes,
            linger_s=linger,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
        )
        producer = Producer(self._session, options, on_close=self._producers.discard)
        self._producers.add(producer)
        return producer

    async def start(self) -> None:
        """Safe to call twice."""
        await self._session.start()
        await self._start_consumers()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Closes what was made of it, leaves its groups and closes its connections. Safe to call twice.

        Consumers have `timeout` seconds to end what they have in hand. Raises NotDelivered where a producer
        had something left that could not be sent.
        """
        if self._session.closed:
            return
        self._session.require_process()
        self._session.require_loop()
        lost: list[NotDelivered] = []
        try:
            # Handlers may still send something, so the producers come after them.
            await self._close_consumers(timeout)
            for producer in list(self._producers):
                try:
                    await producer.close()
                except NotDelivered as error:
                    lost.append(error)
        finally:
            await self._session.close()
        if lost:
            raise NotDelivered(
                sum(error.count for error in lost),
                [failure for error in lost for failure in error.failures],
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))
