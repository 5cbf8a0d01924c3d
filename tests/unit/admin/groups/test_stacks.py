"""Stacks for people: the busy handlers first, equal stacks once, the idle threads folded."""

from __future__ import annotations

import pytest

from metaq.admin.groups.stacks import for_people

OUR = "/venv/lib/python3.11/site-packages/metaq/client"
WORK = f'  File "{OUR}/consumer/handler.py", line 156, in _work_here\n    while taken:'
CALL = f'  File "{OUR}/consumer/handler_threads.py", line 99, in call_here\n    outcome = handler()'
USER = '  File "/app/shop.py", line 7, in pay\n    bank.call()'
WAITS = '  File "/usr/lib/python3.11/threading.py", line 327, in wait\n    waiter.acquire()'


def python(name: str, *frames: str) -> str:
    return "\n".join((f"thread {name}", *frames)) + "\n"


def test_the_busy_handlers_of_the_group_come_first() -> None:
    idle = [python(f"pool-{number}", WAITS) for number in range(100)]
    workers = [python(f"metaq billing worker {number}", WORK) for number in range(20) if number not in (3, 4)]
    stuck = [python(f"metaq billing worker {number}", WORK, CALL, USER, WAITS) for number in (4, 3)]
    other = [python("metaq mail worker 0", WORK, CALL, USER), python("MainThread", USER)]
    shown = for_people("\n\n".join((*idle, *workers, *other, *stuck)), "billing").splitlines()
    assert shown[:4] == [
        "2 busy handlers of billing:",
        "",
        "metaq billing worker 3, 4",
        f"  {WORK.splitlines()[0]}",
    ]
    assert any("/app/shop.py" in line for line in shown[3:12])
    assert "2 other busy threads:" in shown
    assert "18 idle handlers: metaq billing worker 0, 1, 2, 5, 6, 7, 8, 9 and 10 more" in shown
    assert "100 idle threads and tasks: pool-0, 1, 2, 3, 4, 5, 6, 7 and 92 more" in shown
    assert len(shown) < 40


def test_tasks_of_coroutine_handlers() -> None:
    work = f"  {OUR}/consumer/handler.py:120 _work"
    call = f"  {OUR}/consumer/handler_threads.py:90 call"
    text = "\n\n".join(
        (
            f"task metaq g worker 0\n{work}\n  {OUR}/consumer/pull/prefetch.py:9 take",
            f"task metaq g worker 1\n{work}\n{call}\n  /app/shop.py:12 pay\n  /usr/asyncio/locks.py:1 x",
            "task metaq g pull t/0\n  /x/metaq/client/consumer/pull/pull_loops.py:1 _keep_pulling",
        )
    )
    shown = for_people(text, "g").splitlines()
    assert shown[:3] == ["1 busy handler of g:", "", "metaq g worker 1"]
    assert "1 idle handler: metaq g worker 0" in shown
    assert "1 idle thread or task: metaq g pull t/0" in shown


def java(name: str, state: str, *frames: str) -> str:
    return (
        "\n".join((f"{name:<40} TID: 7 STATE: {state}", *(f"{name:<40} {frame}" for frame in frames))) + "\n"
    )


def test_stacks_of_java_clients() -> None:
    waits = (
        "jdk.internal.misc.Unsafe.park(Native Method)",
        "java.util.concurrent.ThreadPoolExecutor.getTask()",
    )
    text = "\n".join(
        (
            java("Thread-1", "WAITING", "java.lang.Object.wait(Native Method)"),
            java("ConsumeMessageThread_g_1", "WAITING", *waits),
            java("ConsumeMessageThread_g_2", "TIMED_WAITING", "java.lang.Thread.sleep()", "shop.Pay.run()"),
            java(
                "ConsumeMessageThread_other_2", "TIMED_WAITING", "java.lang.Thread.sleep()", "shop.Pay.run()"
            ),
        )
    )
    assert for_people(text, "g").splitlines() == [
        *("1 busy handler of g:", "", "ConsumeMessageThread_g_2 (TIMED_WAITING)"),
        *("  java.lang.Thread.sleep()", "  shop.Pay.run()", ""),
        *("1 idle handler: ConsumeMessageThread_g_1", ""),
        "2 idle threads and tasks: Thread-1; ConsumeMessageThread_other_2",
    ]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "no head", "thread", "task \n x" * 9, " TID: 1 STATE: X", "a" * 99_999]
)
def test_any_text_does_no_harm(text: str) -> None:
    assert for_people(text, "g").startswith("0 busy handlers of g")


@pytest.mark.parametrize("line", [" " * 5_000, "x TID: " * 700, "  " + "a:1 " * 1_000, "  " + ":" * 4_000])
def test_hostile_lines_take_no_time(line: str) -> None:
    for_people("\n".join([line] * 200), "g")
