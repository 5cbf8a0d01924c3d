"""Sends checked messages: one request, with as many attempts as its timeout allows."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from metaq._core import UnsentBatch
from metaq.client.clock import now_ms
from metaq.client.message import Outgoing, check_topic, encode_batch
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.queue_selection import QueueSelector, queue_of_key, require_queue
from metaq.client.producer.results import STATUSES, SendResult, SendStatus, not_durable
from metaq.client.session.broker_faults import BrokerFaults
from metaq.client.session.hung_master import unless_replaced
from metaq.client.session.routes import Queue, Route
from metaq.client.session.session import Session
from metaq.errors import InvalidMessage, MetaqError, NoRoute, NotAllSent, NotSent
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import Recalled, RecallMessage, SendBatchMessage, SendMessageV2, Sent
from metaq.protocol.commands.offsets import GetMaxOffset
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.names import MASTER_ID
from metaq.protocol.properties import WAIT, encode_properties
from metaq.protocol.reply import Reply
from metaq.retry import Backoff, Retry

_log = logging.getLogger(__name__)

REFUSALS_MAX: Final = 3
"""A broker that refuses will refuse again, while a silent one may come back."""
ATTEMPT_S_MIN: Final = 0.01
"""A further attempt with less time would rarely get its answer, and hide why the one before failed."""
BACKOFF: Final = Backoff(first_s=0.05, max_s=0.25, jitter=0.5)
"""The pauses between tries: after a master switch, the new master is found a fraction of a second after the
name servers know it."""
_NO_MASTER: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY)
"""The node is not the master any more, or cannot take messages now. Another master may be elected soon, so
these refusals are tried again until the time is over."""
_OTHER_BROKER: Final = (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)
"""Another broker may accept the message."""

_BATCH_PROPERTIES: Final = encode_properties({WAIT: "true"})

_Choose = Callable[[Route, set[str]], Queue]
_Earlier = tuple[Queue, Reply | Unreachable]


class Sender:
    """Sends the messages of one producer."""

    def __init__(self, session: Session, options: ProducerOptions) -> None:
        self._session = session
        self._options = options
        self._selector = QueueSelector()

    @property
    def faults(self) -> BrokerFaults:
        """Brokers that failed recently."""
        return self._selector.faults

    async def route(self, topic: str) -> Route:
        return await self._session.routes.get(topic, creatable=True)

    async def queue_of_key(self, topic: str, key: str, timeout_s: float) -> Queue:
        """Returns the queue of a sharding key, and waits for it while its broker changes its master.

        Raises NotSent if that takes too long, or an error that cannot pass.
        """
        tries = Retry(timeout_s, BACKOFF)
        last: MetaqError | None = None
        while True:
            try:
                route = await self._session.routes.get(topic, refresh=last is not None, creatable=True)
                return queue_of_key(route, key)
            except (Unreachable, NoRoute) as error:
                if not error.retriable:
                    raise
                at_once, last = last is None, error
            pause_s = tries.next_pause_s(at_once=at_once)
            if pause_s is None:
                raise _not_sent(topic, tries.tries, timeout_s, last) from last
            await asyncio.sleep(pause_s)

    async def send(
        self, message: Outgoing, timeout_s: float, *, key: str | None = None, queue: Queue | None = None
    ) -> SendResult:
        """Sends one message. Raises NotSent, NoRoute, Refused or NotDurable."""
        with self._session.telemetry.sending(self._options.group, (message,)) as sending:
            result = await self._send(message, timeout_s, self._choice(key, queue))
            sending.stored((result,))
        return result

    async def send_batch(
        self,
        messages: Sequence[Outgoing],
        timeout_s: float,
        *,
        key: str | None = None,
        queue: Queue | None = None,
    ) -> list[SendResult]:
        """Sends messages of one topic in one request, which the broker stores completely or not at all.

        Raises the errors of `send`, except that messages which are not durable raise NotAllSent.
        """
        if len(messages) == 1:
            return [await self.send(messages[0], timeout_s, key=key, queue=queue)]
        with self._session.telemetry.sending(self._options.group, messages) as sending:
            results = await self._send_batch(messages, timeout_s, self._choice(key, queue))
            sending.stored(results)
            if not self._is_accepted(results[0].status):
                raise NotAllSent([not_durable(result) for result in results])
        return results

    async def _send(self, message: Outgoing, timeout_s: float, choose: _Choose) -> SendResult:
        message.compress(self._options.compress_from_bytes, self._options.compression)
        chosen, reply = await self._attempts(
            message.topic,
            choose,
            lambda target, route, left_s: self._session.call(
                target.broker, self._command(message, target, route), message.body, timeout=left_s
            ),
            timeout_s,
        )
        return self._result(message, chosen, reply)

    async def _send_batch(
        self, messages: Sequence[Outgoing], timeout_s: float, choose: _Choose
    ) -> list[SendResult]:
        body = encode_batch(messages)
        topic = messages[0].topic

        def ask(target: Queue, route: Route, left_s: float) -> Awaitable[Reply]:
            command = self._batch_command(topic, target, route)
            return self._session.call(target.broker, command, body, timeout=left_s)

        chosen, reply = await self._attempts(topic, choose, ask, timeout_s)
        return self._batch_results(messages, chosen, reply)

    async def resend(self, batch: UnsentBatch, *, key: str | None = None) -> None:
        """Continues a batch after the data plane's first attempt, and tells it where the batch was stored.

        If the topic does not have the queue of the batch, `key` selects another one. Raises the errors of
        `send`.
        """
        topic, body, alone = batch.topic, batch.body, batch.alone
        if batch.target is None and batch.spent_s >= self._options.timeout_s:
            raise NotSent(
                f"not sent to {topic} within {self._options.timeout_s:g} s: the messages before it failed",
                hint="is the broker of its queue running?",
            )

        def ask(target: Queue, route: Route, left_s: float) -> Awaitable[Reply]:
            command: SendMessageV2
            if alone is None:
                command = self._batch_command(topic, target, route)
            else:
                properties, system_flag, flag = alone
                command = self._one_command(topic, properties, system_flag, flag, target, route)
            return self._session.call(target.broker, command, body, timeout=left_s)

        queue = None if batch.queue is None else Queue(topic, *batch.queue)
        chosen, reply = await self._attempts(
            topic,
            self._choice(key, queue),
            ask,
            self._options.timeout_s,
            spent_s=batch.spent_s,
            earlier=_earlier(batch),
        )
        sent = reply.header(Sent)
        stored_in = Queue(topic, chosen.broker, sent.queue_id)
        status = STATUSES[ResponseCode(reply.code)]
        is_accepted = self._is_accepted(status)
        optional = (None, None) if alone is None else (sent.recall_handle, sent.transaction_id)
        batch.stored(
            chosen.broker,
            sent.queue_id,
            sent.queue_offset,
            reply.code,
            sent.msg_id,
            *optional,
            is_accepted=is_accepted,
        )
        if not is_accepted:
            raise not_durable(SendResult(batch.first_id, stored_in, sent.queue_offset, status))

    async def send_oneway(
        self, message: Outgoing, *, key: str | None = None, queue: Queue | None = None
    ) -> None:
        """Sends a message once and waits for no answer. Raises only if there is no broker to send it to."""
        with self._session.telemetry.sending(self._options.group, (message,)):
            message.compress(self._options.compress_from_bytes, self._options.compression)
            route = await self.route(message.topic)
            target = self._choice(key, queue)(route, set())
            command = self._command(message, target, route)
            await self._session.send_oneway(target.broker, command, message.body)

    async def recall(self, topic: str, handle: str | None) -> str:
        """Cancels a delayed message, by its handle. Raises InvalidMessage, Unreachable or Refused."""
        check_topic(topic)
        broker = _broker_of(handle)
        await self.route(topic)
        command = RecallMessage(topic=topic, recall_handle=handle or "", producer_group=self._options.group)
        reply = await self._session.call(broker, command, timeout=self._options.attempt_timeout_s)
        message_id = reply.check().header(Recalled).msg_id
        self._session.telemetry.recalled(self._options.group, topic, message_id)
        return message_id

    def _choice(self, key: str | None, queue: Queue | None) -> _Choose:
        if queue is not None and key is not None:
            return lambda route, _: queue if queue in route.writable else queue_of_key(route, key)
        if queue is not None:
            return lambda route, _: require_queue(route, queue)
        if key is not None:
            return lambda route, _: queue_of_key(route, key)
        return self._selector.next

    async def _attempts(
        self,
        topic: str,
        choose: _Choose,
        ask: Callable[[Queue, Route, float], Awaitable[Reply]],
        timeout_s: float,
        *,
        spent_s: float = 0.0,
        earlier: _Earlier | None = None,
    ) -> tuple[Queue, Reply]:
        """Sends the request until a broker has stored it. Returns the queue and the broker's answer.

        After a failure it asks for the route at once: the broker may have another master. `earlier` is the
        outcome of a first attempt that was made elsewhere and took `spent_s` of the time.
        """
        tries = Retry(timeout_s - spent_s, BACKOFF)
        tried: set[str] = set()
        former: set[str] = set()
        """Addresses of masters that failed while another node had become the master."""
        refusals = 0
        is_fixed = choose != self._selector.next
        """The message may go to one queue only."""
        route: Route | None = None
        last: MetaqError | None = None
        while True:
            broker = ""
            try:
                route = await self._session.routes.get(topic, refresh=last is not None, creatable=True)
                masters = _masters(route)
                if earlier is not None:
                    (target, outcome), earlier = earlier, None
                    broker = target.broker
                    if isinstance(outcome, Unreachable):
                        raise outcome
                    reply = outcome
                else:
                    target = choose(route, tried)
                    broker = target.broker
                    if last is not None and tries.left_s < ATTEMPT_S_MIN:
                        raise _not_sent(topic, tries.tries, timeout_s, last) from last
                    left_s = max(tries.left_s, 0.001)
                    attempt = ask(target, route, min(left_s, self._options.attempt_timeout_s))
                    reply = await self._unless_replaced(attempt, target, masters.get(broker))
                if reply.code not in STATUSES:
                    reply.check()
                elif await self._is_fenced(target, reply, masters.get(broker)):
                    raise Refused(reply.code, reply.remark or f"{broker} has another master now")
                self._selector.faults.worked(broker)
                if route.is_template:
                    self._session.routes.made(topic)
                return target, reply
            except Refused as error:
                is_fenced = error.code in STATUSES
                refusals += not is_fenced and error.code not in _NO_MASTER
                elsewhere = error.code in _OTHER_BROKER and not _all_tried(route, tried | {broker})
                if not (error.retriable or elsewhere or is_fenced):
                    raise
                last = error
            except (Unreachable, NoRoute) as error:
                if not error.retriable:
                    raise
                last = error
            address = masters.get(broker) if broker else None
            if address and _may_switch(last) and await self._has_moved(topic, broker, address):
                # Only the former master has failed.
                self._selector.faults.worked(broker)
                at_once = address not in former
                former.add(address)
            else:
                # Without another broker that the message may go to, only time can help.
                at_once = bool(broker) and broker not in tried
                if broker:
                    self._selector.faults.failed(broker)
                    tried.add(broker)
                at_once = at_once and not is_fixed and not _all_tried(route, tried)
            pause_s = tries.next_pause_s(at_once=at_once)
            if pause_s is None or refusals >= REFUSALS_MAX:
                raise _not_sent(topic, tries.tries, timeout_s, last) from last
            _log.info("a message to %s was not sent and is tried again: %s", topic, last)
            await asyncio.sleep(pause_s)

    async def _unless_replaced(self, attempt: Awaitable[Reply], target: Queue, address: str | None) -> Reply:
        """Returns the answer to an attempt. Raises Unreachable once its master hangs and was replaced."""
        if address is None:
            return await attempt
        question = GetMaxOffset(topic=target.topic, queue_id=max(target.id, 0))
        return await unless_replaced(
            attempt,
            lambda timeout_s: self._session.connections.call(address, question, b"", timeout_s),
            lambda: self._has_moved(target.topic, target.broker, address),
        )

    async def _has_moved(self, topic: str, broker: str, address: str | None) -> bool:
        """Asks for the route, and returns whether the broker has a master at another address now."""
        try:
            route = await self._session.routes.get(topic, refresh=True, creatable=True)
        except (Unreachable, NoRoute, Refused):
            return False  # The next attempt asks again.
        return _masters(route).get(broker, address) != address

    async def _is_fenced(self, target: Queue, reply: Reply, address: str | None) -> bool:
        """Returns whether a former master has stored the message and could not pass it on.

        The new master may lack it. Nobody has acknowledged it, so it is sent again.
        """
        if reply.code != ResponseCode.FLUSH_SLAVE_TIMEOUT or self._is_accepted(SendStatus.REPLICA_TIMEOUT):
            return False
        return await self._has_moved(target.topic, target.broker, address)

    def _command(self, message: Outgoing, target: Queue, route: Route) -> SendMessageV2:
        properties = encode_properties(message.properties)
        return self._one_command(message.topic, properties, message.system_flag, message.flag, target, route)

    def _one_command(
        self, topic: str, properties: str, system_flag: int, flag: int, target: Queue, route: Route
    ) -> SendMessageV2:
        return SendMessageV2(
            producer_group=self._options.group,
            topic=topic,
            default_topic_queue_nums=_new_queues(route, target),
            queue_id=target.id,
            sys_flag=system_flag,
            born_timestamp=now_ms(),
            flag=flag,
            properties=properties,
            broker_name=target.broker,
        )

    def _batch_command(self, topic: str, target: Queue, route: Route) -> SendBatchMessage:
        return SendBatchMessage(
            producer_group=self._options.group,
            topic=topic,
            default_topic_queue_nums=_new_queues(route, target),
            queue_id=target.id,
            born_timestamp=now_ms(),
            properties=_BATCH_PROPERTIES,
            batch=True,
            broker_name=target.broker,
        )

    def _result(self, message: Outgoing, target: Queue, reply: Reply) -> SendResult:
        sent = reply.header(Sent)
        result = SendResult(
            id=message.id,
            queue=Queue(message.topic, target.broker, sent.queue_id),
            queue_offset=sent.queue_offset,
            status=STATUSES[ResponseCode(reply.code)],
            offset_id=sent.msg_id,
            recall_handle=sent.recall_handle,
            transaction_id=sent.transaction_id,
        )
        if not self._is_accepted(result.status):
            raise not_durable(result)
        return result

    def _batch_results(self, messages: Sequence[Outgoing], target: Queue, reply: Reply) -> list[SendResult]:
        sent = reply.header(Sent)
        offset_ids = sent.msg_id.split(",")
        offset_ids += [""] * (len(messages) - len(offset_ids))
        status = STATUSES[ResponseCode(reply.code)]
        queue = Queue(messages[0].topic, target.broker, sent.queue_id)
        return [
            SendResult(message.id, queue, sent.queue_offset + index, status, offset_ids[index])
            for index, message in enumerate(messages)
        ]

    def _is_accepted(self, status: SendStatus) -> bool:
        return status is SendStatus.STORED or status in self._options.accept


def _earlier(batch: UnsentBatch) -> _Earlier | None:
    """Returns the outcome of the data plane's attempt, or None if it knew no broker."""
    if batch.target is None:
        return None
    target = Queue(batch.topic, *batch.target)
    if batch.answer is None:
        return target, Unreachable(batch.failure or "no answer")
    code, remark, fields = batch.answer
    return target, Reply(code, remark, fields, b"")


def _broker_of(handle: str | None) -> str:
    """Returns the broker name of a handle, which is `v1 topic broker time id` in base 64. MetaQ's brokers add
    a signature."""
    try:
        parts = base64.urlsafe_b64decode(handle or "").decode().split(" ")
    except (TypeError, ValueError):
        parts = []
    if len(parts) < 5 or parts[0] != "v1":
        raise InvalidMessage(
            f"{handle!r} is not a recall handle", hint="the result of a delayed send has one"
        )
    return parts[2]


def _may_switch(error: MetaqError) -> bool:
    """Returns whether the error may come from a node that is not the master any more."""
    return isinstance(error, Unreachable) or error.code in (*_NO_MASTER, *STATUSES)


def _masters(route: Route) -> dict[str, str]:
    """Returns the addresses of the masters by the names of their brokers."""
    return {name: addresses[MASTER_ID] for name, addresses in route.brokers.items() if MASTER_ID in addresses}


def _all_tried(route: Route | None, tried: set[str]) -> bool:
    return route is None or {queue.broker for queue in route.writable} <= tried


def _not_sent(topic: str, attempts: int, timeout_s: float, last: MetaqError) -> NotSent:
    count = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return NotSent(f"not sent to {topic} after {count} within {timeout_s:g} s: {last}", code=last.code)


def _new_queues(route: Route, target: Queue) -> int:
    """Returns how many queues the broker creates if this message creates the topic."""
    return sum(queue.broker == target.broker for queue in route.writable)
