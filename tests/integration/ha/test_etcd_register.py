"""The register in a real etcd: kills, restarts, compaction, authentication, TLS and wrong addresses."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from metaq.ha.register import Outcome, Register, RegisterUnavailable, open_register
from tests.support.etcd import Certificates, Etcd, Member
from tests.support.processes import free_port
from tests.support.waiting import run, until

KEY = "metaq/c/b/group"
USER, PASSWORD = "metaq", "an old horse"
StartEtcd = Callable[..., Etcd]


@contextlib.asynccontextmanager
async def opened(text: str, options: str = "") -> AsyncIterator[Register]:
    # The longest time-out, so that a busy machine does not make outcomes unknown.
    chosen = "&".join(filter(None, (options, "" if "timeout_ms" in text + options else "timeout_ms=3000")))
    register = open_register(f"{text}{'&' if '?' in text else '/?'}{chosen}" if chosen else text)
    try:
        yield register
    finally:
        await register.close()


async def revision(register: Register, key: str = KEY) -> int:
    stored = await register.get(key)
    return stored.revision if stored is not None else 0


async def swap_until_known(register: Register, value: bytes, timeout_s: float = 60) -> list[str]:
    """Swaps as a node does: after every outcome but DONE it reads again. Returns what happened on the way."""
    steps: list[str] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            stored = await register.get(KEY)
            if stored is not None and stored.value == value:
                return [*steps, "found"]
            outcome = await register.compare_and_swap(KEY, stored.revision if stored else 0, value)
            steps.append(outcome.value)
            if outcome is Outcome.DONE:
                return steps
        except RegisterUnavailable:
            steps.append("unavailable")
            await asyncio.sleep(0.02)
    raise TimeoutError(f"no swap within {timeout_s} s: {steps[-20:]}")


def test_a_member_that_was_killed_and_started_again_is_used_again(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()

    async def scenario() -> None:
        async with opened(etcd.register) as register:
            assert await register.compare_and_swap(KEY, 0, b"a") is Outcome.DONE
            hints = register.watch("metaq/")
            await anext(hints)
            etcd.kill(etcd.members[0])
            with pytest.raises(RegisterUnavailable, match="Connection refused"):
                await register.get(KEY)
            with pytest.raises(RegisterUnavailable, match="Connection refused"):
                await register.compare_and_swap(KEY, 2, b"never")
            etcd.restart(etcd.members[0])
            stored = await register.get(KEY)
            assert stored is not None and stored.value == b"a"
            assert await register.compare_and_swap(KEY, stored.revision, b"b") is Outcome.DONE
            await anext(hints)

    run(scenario)


def endpoints_from(etcd: Etcd, first: Member) -> str:
    members = [first, *(member for member in etcd.members if member is not first)]
    return "etcd://" + ",".join(member.address for member in members)


def test_three_members_survive_a_kill_and_a_pause_of_their_leader(
    start_etcd: StartEtcd, capsys: pytest.CaptureFixture[str]
) -> None:
    etcd = start_etcd(3)

    async def scenario() -> None:
        leader = etcd.leader()
        async with opened(endpoints_from(etcd, leader), "timeout_ms=1000") as register:
            cluster = await register.cluster_id()
            assert await register.compare_and_swap(KEY, 0, b"0") is Outcome.DONE
            for member in etcd.members:
                async with opened(f"etcd://{member.address}") as alone:
                    assert await alone.cluster_id() == cluster
                    assert await revision(alone) == await revision(register)

            etcd.kill(leader)
            started = time.monotonic()
            steps = await swap_until_known(register, b"after the kill")
            with capsys.disabled():
                print(f"\n  etcd leader killed: swap after {time.monotonic() - started:.2f} s {steps}")
            await asyncio.to_thread(etcd.restart, leader)

            leader = await asyncio.to_thread(etcd.leader)
            async with opened(endpoints_from(etcd, leader), "timeout_ms=1000") as second:
                await second.get(KEY)
                leader.child.process.send_signal(signal.SIGSTOP)
                try:
                    started = time.monotonic()
                    steps = await swap_until_known(second, b"during the pause")
                    with capsys.disabled():
                        print(f"  etcd leader paused: swap after {time.monotonic() - started:.2f} s {steps}")
                finally:
                    leader.child.process.send_signal(signal.SIGCONT)
            stored = await register.get(KEY)
            assert stored is not None and stored.value == b"during the pause"

    run(scenario)


def test_without_a_majority_nothing_is_answered_and_nothing_is_lost(start_etcd: StartEtcd) -> None:
    etcd = start_etcd(3)

    async def scenario() -> None:
        survivor, *others = etcd.members
        async with opened(endpoints_from(etcd, survivor), "timeout_ms=500") as register:
            assert await register.compare_and_swap(KEY, 0, b"a") is Outcome.DONE
            before = await revision(register)
            for member in others:
                etcd.kill(member)
            started = time.monotonic()
            # The survivor takes the proposal and may commit it when the others are back.
            assert await register.compare_and_swap(KEY, before, b"b") is Outcome.UNKNOWN
            with pytest.raises(RegisterUnavailable, match=r"no answer within 500 ms|etcd answered"):
                await register.get(KEY)
            assert time.monotonic() - started < 10
            for member in others:
                member.start()
            await asyncio.to_thread(etcd.wait)
        async with opened(etcd.register) as register:
            # A swap from the same revision settles the first one: at most one of both is ever applied.
            second = await register.compare_and_swap(KEY, before, b"c")
            assert second in (Outcome.DONE, Outcome.CONFLICT)
            stored = await register.get(KEY)
            assert stored is not None
            assert stored.value == (b"c" if second is Outcome.DONE else b"b")

    run(scenario)


def test_a_watch_goes_on_over_a_compaction(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()

    async def scenario() -> None:
        async with opened(etcd.register) as register:
            hints = register.watch("metaq/")
            await anext(hints)
            for _ in range(3):
                for _ in range(5):
                    before = await revision(register)
                    assert await register.compare_and_swap(KEY, before, b"x") is Outcome.DONE
                    await anext(hints)
                etcd.compact()
            await register.compare_and_swap(KEY, await revision(register), b"last")
            await anext(hints)

    run(scenario)


def test_a_user_with_a_password(start_etcd: StartEtcd, tmp_path: Path) -> None:
    etcd = start_etcd()
    password_file, token_file = tmp_path / "password", tmp_path / "token"
    password_file.write_text(PASSWORD + "\n")
    as_user = f"user={USER}&password_file={password_file}"

    async def scenario() -> None:
        async with opened(etcd.register, as_user) as register:
            # Brokers may have a user before etcd asks for one.
            assert await register.compare_and_swap(KEY, 0, b"a") is Outcome.DONE
            await asyncio.to_thread(etcd.enable_authentication, USER, PASSWORD)
            assert await register.compare_and_swap(KEY, await revision(register), b"b") is Outcome.DONE
            hints = register.watch("metaq/")
            await anext(hints)
            assert await register.compare_and_swap(KEY, await revision(register), b"c") is Outcome.DONE
            await anext(hints)
            with pytest.raises(RegisterUnavailable, match=r"etcd denies user 'metaq'.*the prefix metaq/"):
                await register.get("other/key")
            with pytest.raises(RegisterUnavailable, match="etcd denies user 'metaq'"):
                await register.compare_and_swap("other/key", 0, b"")

            token_file.write_text(await asyncio.to_thread(etcd.token, USER, PASSWORD))
            async with opened(etcd.register, f"token_file={token_file}") as by_token:
                assert await revision(by_token) == await revision(register)

            # A member that starts again knows none of its tokens any longer.
            etcd.kill(etcd.members[0])
            await asyncio.to_thread(etcd.restart, etcd.members[0])
            assert await register.compare_and_swap(KEY, await revision(register), b"d") is Outcome.DONE

        password_file.write_text("a wrong one")
        async with opened(etcd.register, as_user) as wrong:
            with pytest.raises(RegisterUnavailable, match="etcd refuses user 'metaq'") as raised:
                await wrong.get(KEY)
            assert "a wrong one" not in str(raised.value)
        async with opened(etcd.register) as nobody:
            with pytest.raises(RegisterUnavailable, match="add user= and password_file="):
                await nobody.get(KEY)

    run(scenario)


def test_tls_with_a_client_certificate(start_etcd: StartEtcd, tmp_path: Path) -> None:
    certificates, strangers = Certificates.make(tmp_path), Certificates.make(tmp_path, "stranger")
    etcd = start_etcd(tls=certificates)
    place = etcd.members[0].address
    own_key = f"cert_file={certificates.cert}&key_file={certificates.key}"

    async def refused(text: str, complaint: str) -> None:
        async with opened(text) as register:
            with pytest.raises(RegisterUnavailable, match=complaint):
                await register.get(KEY)

    async def scenario() -> None:
        async with opened(etcd.register) as register:
            assert await register.compare_and_swap(KEY, 0, b"a") is Outcome.DONE
            hints = register.watch("metaq/")
            await anext(hints)
            assert await register.compare_and_swap(KEY, await revision(register), b"b") is Outcome.DONE
            await anext(hints)
        await refused(f"etcds://{place}/?ca_file={strangers.ca}&{own_key}", "certificate is not accepted")
        await refused(f"etcds://{place}", "certificate is not accepted")
        # With TLS 1.3 a server refuses a client after the client's handshake has ended.
        await refused(f"etcds://{place}/?ca_file={certificates.ca}", "check cert_file and key_file|reset")
        stranger = f"cert_file={strangers.cert}&key_file={strangers.key}"
        await refused(
            f"etcds://{place}/?ca_file={certificates.ca}&{stranger}", "check cert_file and key_file|reset"
        )
        await refused(f"etcd://{place}", "an etcd with TLS needs etcds://")

    run(scenario)


def test_a_wrong_address_is_a_clear_error_within_the_time_out(etcd: Etcd) -> None:
    member = etcd.members[0]

    async def scenario() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        silent = server.sockets[0].getsockname()[1]
        peer = member.peer_url.removeprefix("http://")
        for text, complaint in (
            (f"etcd://127.0.0.1:{free_port()}", "Connection refused"),
            (f"etcd://127.0.0.1:{silent}/?timeout_ms=300", "no answer within 300 ms"),
            (f"etcd://{peer}", "this is not the gateway of etcd"),
            (f"etcds://{member.address}", "an etcd without TLS needs etcd://"),
            ("etcd://a..b:2379", "is not the name of a host"),
        ):
            async with opened(text) as register:
                started = time.monotonic()
                with pytest.raises(RegisterUnavailable, match=complaint) as raised:
                    await register.get(KEY)
                place = text.split("//")[1].split("/")[0]
                assert place in str(raised.value)
                assert time.monotonic() - started < 10
                with contextlib.suppress(RegisterUnavailable):
                    assert await register.compare_and_swap(KEY, 0, b"") is Outcome.UNKNOWN
        # One good endpoint among wrong ones is enough.
        good = f"etcd://127.0.0.1:{free_port()},{peer},127.0.0.1:{silent},{member.address}/?timeout_ms=300"
        async with opened(good) as register:
            await register.get(KEY)
        server.close()

    run(scenario)


def test_endpoints_of_two_clusters_are_told_apart(start_etcd: StartEtcd) -> None:
    one, other = start_etcd(), start_etcd()

    async def scenario() -> None:
        async with opened(one.register) as first, opened(other.register) as second:
            assert await first.cluster_id() != await second.cluster_id()
        mixed = f"{one.register},{other.members[0].address}"
        async with opened(mixed) as register:
            assert await register.compare_and_swap(KEY, 0, b"one") is Outcome.DONE
            one.kill(one.members[0])
            with pytest.raises(RegisterUnavailable, match="belongs to the etcd cluster"):
                await register.get(KEY)
            with pytest.raises(RegisterUnavailable, match="belongs to the etcd cluster"):
                await register.compare_and_swap(KEY, 0, b"two")
            await asyncio.to_thread(one.restart, one.members[0])
            stored = await register.get(KEY)
            assert stored is not None and stored.value == b"one"
        async with opened(other.register) as untouched:
            assert await untouched.get(KEY) is None

    run(scenario)


def test_a_watch_goes_on_at_another_member_if_its_own_dies(start_etcd: StartEtcd) -> None:
    etcd = start_etcd(3)

    async def scenario() -> None:
        first, second, _ = etcd.members
        async with (
            opened(endpoints_from(etcd, first)) as register,
            opened(f"etcd://{second.address}") as writer,
        ):
            hints = register.watch("metaq/")
            await anext(hints)
            etcd.kill(first)
            # Opened anew at another member, it hints first that something may have happened.
            await anext(hints)
            await until(lambda: _swapped(writer), what="a swap")
            await anext(hints)

    run(scenario)


async def _swapped(register: Register) -> bool:
    try:
        return await register.compare_and_swap(KEY, await revision(register), b"x") is Outcome.DONE
    except RegisterUnavailable:
        return False
