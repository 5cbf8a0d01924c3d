"""The traps of etcd's gateway, and answers that no etcd gives."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from metaq.ha.register import Outcome, RegisterUnavailable, Stored, parse_register
from metaq.ha.registers.etcd import EtcdRegister
from metaq.ha.registers.http_connection import BODY_BYTES_MAX
from tests.support.processes import free_port
from tests.support.waiting import run, until
from tests.unit.ha.registers.gateway import CLUSTER, FakeGateway, Request, answer, chunk, error, ok

KEY = "metaq/c/b/group"
TXN, RANGE, WATCH, AUTHENTICATE = "/v3/kv/txn", "/v3/kv/range", "/v3/watch", "/v3/auth/authenticate"
EMPTY_WATCH = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Script = Callable[[Request], bytes | None]


@contextlib.asynccontextmanager
async def opened(*gateways: FakeGateway, options: str = "timeout_ms=1000") -> AsyncIterator[EtcdRegister]:
    async with contextlib.AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        addresses = ",".join(f"127.0.0.1:{gateway.port}" for gateway in gateways)
        register = EtcdRegister(parse_register(f"etcd://{addresses}/?{options}"))
        stack.push_async_callback(register.close)
        yield register


def always(given: bytes | None) -> Script:
    return lambda request: given


def close(request: Request) -> bytes:
    raise ConnectionResetError


async def swap(register: EtcdRegister) -> Outcome:
    return await register.compare_and_swap(KEY, 3, b"v")


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (ok(succeeded=True), Outcome.DONE),
        (ok(), Outcome.CONFLICT),  # `false` is left out
        (ok(succeeded=False), Outcome.CONFLICT),
        (answer(b"{}"), Outcome.UNKNOWN),
        (answer(b'{"succeeded": true}'), Outcome.UNKNOWN),
        (ok(cluster=CLUSTER + 1, succeeded=True), Outcome.UNKNOWN),
        (None, Outcome.UNKNOWN),
        (error(14, "etcdserver: request timed out", 503), Outcome.UNKNOWN),
        (error(14, "etcdserver: leader changed", 503), Outcome.UNKNOWN),
        # The write that fills the quota is applied and answered with this.
        (error(8, "etcdserver: mvcc: database space exceeded", 429), Outcome.UNKNOWN),
        (error(2, "context canceled", 500), Outcome.UNKNOWN),
        (answer(b"bad gateway", 502), Outcome.UNKNOWN),
    ],
)
def test_the_outcome_of_a_swap(given: bytes | None, outcome: Outcome) -> None:
    async def scenario() -> None:
        async with opened(FakeGateway(always(given)), options="timeout_ms=200") as register:
            assert await swap(register) is outcome

    run(scenario)


def test_a_swap_names_key_revision_and_value() -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(ok(succeeded=True)))
        async with opened(gateway) as register:
            await register.compare_and_swap("k", 2**62, b"\xff\x00")
        key = base64.b64encode(b"k").decode()
        assert gateway.requests[-1].body == {
            "compare": [{"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(2**62)}],
            "success": [{"request_put": {"key": key, "value": "/wA="}}],
        }

    run(scenario)


@pytest.mark.parametrize(
    "given",
    [
        error(3, "etcdserver: request is too large"),
        error(7, "etcdserver: permission denied", 403),
        answer(b"404 page not found", 404),
    ],
)
def test_a_swap_that_was_certainly_not_applied_is_not_unknown(given: bytes) -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(given))
        async with opened(gateway) as register:
            with pytest.raises(RegisterUnavailable, match=f"127.0.0.1:{gateway.port}"):
                await swap(register)

    run(scenario)


def test_a_swap_is_sent_once_if_its_connection_breaks() -> None:
    async def scenario() -> None:
        broken, other = FakeGateway(close), FakeGateway(always(ok(succeeded=True)))
        async with opened(broken, other) as register:
            assert await swap(register) is Outcome.UNKNOWN
            assert (broken.sent(TXN), other.sent(TXN)) == (1, 0)
            # The next one goes to an endpoint that answers.
            assert await swap(register) is Outcome.DONE
            assert (broken.sent(TXN), other.sent(TXN)) == (1, 1)

    run(scenario)


def test_a_swap_goes_on_to_the_next_endpoint_if_the_first_cannot_have_it() -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(ok(succeeded=True)))
        async with gateway.running():
            text = f"etcd://127.0.0.1:{free_port()},127.0.0.1:{gateway.port}"
            register = EtcdRegister(parse_register(text))
            assert await swap(register) is Outcome.DONE
            await register.close()

    run(scenario)


def test_a_cancelled_swap_leaves_no_answer_for_the_next_request() -> None:
    async def scenario() -> None:
        released = asyncio.Event()
        found = {"key": base64.b64encode(KEY.encode()).decode(), "mod_revision": "9"}

        async def late() -> bytes:
            await released.wait()
            return ok(succeeded=True)

        gateway = FakeGateway(lambda request: late() if request.path == TXN else ok(kvs=[found]))
        async with opened(gateway) as register:
            await register.get(KEY)
            task = asyncio.create_task(swap(register))
            await until(lambda: gateway.sent(TXN))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            released.set()
            assert await register.get(KEY) == Stored(b"", 9)
            assert gateway.connections == 2

    run(scenario)


FOREIGN = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000,
    "header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "large length": f"HTTP/1.1 200 OK\r\nContent-Length: {2 * BODY_BYTES_MAX}\r\n\r\n".encode()
    + b"x" * (BODY_BYTES_MAX + 1),
    "large chunks": EMPTY_WATCH + chunk(b"x" * 100_000) * (BODY_BYTES_MAX // 100_000 + 1),
    "bad chunk size": EMPTY_WATCH + b"xyz\r\n",
    "chunk longer than its size": EMPTY_WATCH + b"2\r\nabcd\r\n0\r\n\r\n",
    "malformed JSON": answer(b'{"header": '),
    "not UTF-8": answer(b'{"header": {"cluster_id": "\xff"}}'),
    "deep JSON": answer(b'{"x":' + b"[" * 200_000),
    "another type": answer(b"[1]"),
    "no cluster": answer(b'{"header": {}}'),
    "number that is none": answer(b'{"header": {"cluster_id": "seven"}}'),
    "value that is not base64": ok(kvs=[{"key": "!", "mod_revision": "1"}]),
    "revision that is missing": ok(kvs=[{"key": base64.b64encode(KEY.encode()).decode()}]),
    "redirect": answer(b"", 302),
}


@pytest.mark.parametrize("given", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_answer_is_an_error_that_names_the_endpoint(given: bytes) -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(given))
        async with opened(gateway) as register:
            with pytest.raises(RegisterUnavailable, match=f"127.0.0.1:{gateway.port}") as raised:
                await register.get(KEY)
            assert len(str(raised.value)) < 1000

    run(scenario)


def test_a_large_answer_is_not_read_to_its_end() -> None:
    async def scenario() -> None:
        given = f"HTTP/1.1 200 OK\r\nContent-Length: {10**11}\r\n\r\n".encode() + b"x" * (BODY_BYTES_MAX + 1)
        async with opened(FakeGateway(always(given))) as register:
            with pytest.raises(RegisterUnavailable, match=f"larger than {BODY_BYTES_MAX} bytes"):
                await register.get(KEY)

    run(scenario)


def test_silence_is_an_error_within_the_time_out() -> None:
    async def scenario() -> None:
        async with opened(FakeGateway(always(None)), options="timeout_ms=100") as register:
            started = time.monotonic()
            with pytest.raises(RegisterUnavailable, match="no answer within 100 ms") as raised:
                await register.get(KEY)
            assert raised.value.is_late
            # Three attempts at most; the rest is for a busy machine.
            assert time.monotonic() - started < 5

    run(scenario)


def test_many_requests_use_one_connection() -> None:
    async def scenario() -> None:
        body = json.dumps({"header": {"cluster_id": str(CLUSTER)}}).encode()
        chunked = EMPTY_WATCH + chunk(body[:9]) + chunk(body[9:]) + b"0\r\n\r\n"
        given = [ok(), chunked] * 5
        gateway = FakeGateway(lambda request: given.pop())
        async with opened(gateway) as register:
            for _ in range(10):
                assert await register.get(KEY) is None
        assert gateway.connections == 1

    run(scenario)


def test_an_idle_connection_that_the_peer_closed_is_replaced() -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(ok(succeeded=True)), close_after=True)
        # Each connection gives one answer: the one to the question for the cluster.
        async with opened(gateway) as register:
            with pytest.raises(RegisterUnavailable, match="closed the connection"):
                await register.get(KEY)
            gateway.close_after = False
            assert await swap(register) is Outcome.DONE

    run(scenario)


def test_an_endpoint_of_another_cluster_gets_no_swap() -> None:
    async def scenario() -> None:
        own, other = FakeGateway(always(ok())), FakeGateway(always(ok()), cluster=CLUSTER + 1)
        async with opened(own, other) as register:
            assert await register.cluster_id() == "7"
            own.script = close
            assert await swap(register) is Outcome.UNKNOWN
            own.script = always(ok(succeeded=True))
            assert await swap(register) is Outcome.DONE
            assert other.sent(TXN) == 0
            own.script = close
            with pytest.raises(RegisterUnavailable, match="belongs to the etcd cluster 8, not to 7"):
                await register.get(KEY)

    run(scenario)


@pytest.mark.parametrize(
    "refusal",
    [
        error(16, "etcdserver: invalid auth token", 401),
        error(3, "etcdserver: user name is empty"),
        error(2, "auth: revision in header is old", 500),
    ],
)
def test_a_token_that_is_not_valid_any_longer_is_replaced(tmp_path: Path, refusal: bytes) -> None:
    (tmp_path / "password").write_text("geheim\n")
    tokens = iter(("first", "second"))

    def script(request: Request) -> bytes | None:
        if request.path == AUTHENTICATE:
            assert request.body == {"name": "me", "password": "geheim"}
            assert "authorization" not in request.headers
            return ok(token=next(tokens))
        return ok(succeeded=True) if request.headers["authorization"] == "second" else refusal

    async def scenario() -> None:
        gateway = FakeGateway(script)
        options = f"user=me&password_file={tmp_path / 'password'}"
        async with opened(gateway, options=options) as register:
            assert await swap(register) is Outcome.DONE
            assert await swap(register) is Outcome.DONE
        assert (gateway.sent(AUTHENTICATE), gateway.sent(TXN), gateway.connections) == (2, 3, 1)

    run(scenario)


def test_tokens_that_are_never_valid_end_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("geheim")

    def script(request: Request) -> bytes | None:
        refusal = error(16, "etcdserver: invalid auth token", 401)
        return ok(token="t") if request.path == AUTHENTICATE else refusal

    async def scenario() -> None:
        gateway = FakeGateway(script)
        options = f"user=me&password_file={tmp_path / 'password'}"
        async with opened(gateway, options=options) as register:
            with pytest.raises(RegisterUnavailable, match=r"etcd refuses user 'me'.*invalid auth token"):
                await swap(register)
        assert gateway.sent(TXN) < 6

    run(scenario)


@pytest.mark.parametrize("token", ["", "a\r\nX: y", "ä"])
def test_a_token_that_is_not_one_is_never_sent(tmp_path: Path, token: str) -> None:
    (tmp_path / "password").write_text("geheim")

    async def scenario() -> None:
        gateway = FakeGateway(lambda request: ok(token=token))
        options = f"user=me&password_file={tmp_path / 'password'}"
        async with opened(gateway, options=options) as register:
            with pytest.raises(RegisterUnavailable, match="token is empty or malformed"):
                await register.get(KEY)
        assert {request.path for request in gateway.requests} == {AUTHENTICATE}

    run(scenario)


def test_a_password_that_can_no_longer_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("geheim")

    async def scenario() -> None:
        options = f"user=me&password_file={tmp_path / 'password'}"
        async with opened(FakeGateway(always(ok())), options=options) as register:
            (tmp_path / "password").unlink()
            with pytest.raises(RegisterUnavailable, match=r"cannot read .*password"):
                await register.get(KEY)

    run(scenario)


def test_a_value_that_is_empty_is_left_out() -> None:
    async def scenario() -> None:
        found = {"key": base64.b64encode(KEY.encode()).decode(), "mod_revision": "9"}
        async with opened(FakeGateway(always(ok(kvs=[found], count="1")))) as register:
            assert await register.get(KEY) == Stored(b"", 9)
            assert await register.list("metaq/") == {KEY: Stored(b"", 9)}

    run(scenario)


def event(**fields: object) -> bytes:
    result = {"header": {"cluster_id": str(CLUSTER)}, **fields}
    return chunk(json.dumps({"result": result}).encode() + b"\n")


CREATED, CHANGED, PROGRESS = event(created=True), event(events=[{"kv": {}}]), event()
CANCELLED = event(canceled=True, compact_revision="99")
STREAM_ERROR = chunk(b'{"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}\n')


@pytest.mark.parametrize(
    ("stream", "hints"),
    [
        (CREATED, 1),
        (CREATED + CHANGED + CHANGED, 3),
        (CREATED + PROGRESS + PROGRESS, 1),
        (CREATED + CHANGED + CANCELLED, 2),
        (CREATED + CHANGED + STREAM_ERROR, 2),
        (CREATED + chunk(b"nonsense\n"), 1),
        (CREATED + chunk(b'{"result": {}}\n'), 1),
        (CREATED + chunk(b"{}\n"), 1),
        (event(created=True, canceled=True, cancel_reason="permission denied"), 0),
        (event(created=True, header={"cluster_id": "8"}), 0),
        # A line may come in many pieces.
        (
            b"".join(
                chunk(bytes((byte,))) for byte in b'{"result":{"header":{"cluster_id":"7"},"created":true}}\n'
            ),
            1,
        ),
    ],
)
def test_a_watch_hints_and_is_opened_anew_when_it_ends(stream: bytes, hints: int) -> None:
    """The second watch shows that the first one gave all its hints and ended."""

    async def scenario() -> None:
        first = [EMPTY_WATCH + stream + b"0\r\n\r\n"]
        gateway = FakeGateway(lambda request: first.pop() if first else EMPTY_WATCH + CREATED)
        seen = 0
        async with opened(gateway) as register:
            async for _ in register.watch("metaq/"):
                seen += 1
                if gateway.sent(WATCH) == 2:
                    break
        assert seen == hints + 1
        assert gateway.requests[-1].headers["grpc-metadata-hasleader"] == "true"

    run(scenario)


def test_a_watch_that_does_not_start_goes_to_the_next_endpoint() -> None:
    async def scenario() -> None:
        silent, other = FakeGateway(always(None)), FakeGateway(always(EMPTY_WATCH + CREATED))
        async with opened(silent, other, options="timeout_ms=100") as register:
            await anext(register.watch("metaq/"))
            assert other.sent(WATCH) == 1

    run(scenario)


def test_a_watch_that_is_silent_for_long_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.ha.registers.etcd._WATCH_SILENCE_S", 0.05)

    async def scenario() -> None:
        gateway = FakeGateway(always(EMPTY_WATCH + CREATED))
        async with opened(gateway) as register:
            watch = register.watch("metaq/")
            for opened_times in (1, 2, 3):
                await anext(watch)
                assert gateway.sent(WATCH) == opened_times

    run(scenario)


def test_a_watch_ends_when_the_register_is_closed() -> None:
    async def scenario() -> None:
        gateway = FakeGateway(always(EMPTY_WATCH + CREATED))
        async with opened(gateway) as register:
            watch = register.watch("metaq/")
            await anext(watch)
            waiting = asyncio.ensure_future(anext(watch, "ended"))
            await register.close()
            assert await waiting == "ended"
            with pytest.raises(RegisterUnavailable, match="was closed"):
                await register.get(KEY)

    run(scenario)
