"""Makes the sync calls of a process do nothing, fail or hang, when a test says so.

A seccomp filter hands `fsync`, `fdatasync`, `msync`, `sync_file_range`, `syncfs` and `sync` of the started
process, and of nothing else on the machine, to this one, which lets them pass, answers them with success
without doing them, fails them with EIO, or lets them hang. Being at the system call it also sees the calls
that never go through the C library. Linux only; needs no privilege.

    test process                        started process
    a thread of SyncFaults  ◄─listener─  this file as a script: installs the filter, passes its listener
                                         back, then executes the real command in its own place
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import secrets
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

_SYNC_CALLS = {
    "x86_64": {"fsync": 74, "fdatasync": 75, "msync": 26, "sync_file_range": 277, "syncfs": 306, "sync": 162},
    "aarch64": {"fsync": 82, "fdatasync": 83, "msync": 227, "sync_file_range": 84, "syncfs": 267, "sync": 81},
}
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_FILTER_FLAG_NEW_LISTENER = 1 << 3
_RETURN_USER_NOTIFICATION = 0x7FC00000
_RETURN_ALLOW = 0x7FFF0000
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NOTIFICATION_CONTINUE = 1

# struct seccomp_notif: id u64, pid u32, flags u32, then seccomp_data (64 bytes); seccomp_notif_resp: id u64,
# val s64, error s32, flags u32. The request numbers are _IOWR('!', 0 | 1, sizeof).
_NOTIFICATION = struct.Struct("=QII64s")
_REPLY = struct.Struct("=QqiI")
_RECEIVE = (3 << 30) | (_NOTIFICATION.size << 16) | (ord("!") << 8) | 0
_SEND = (3 << 30) | (_REPLY.size << 16) | (ord("!") << 8) | 1

_POLL_MS = 50
_START_TIMEOUT_S = 60


class Sync(Enum):
    """The outcome of a sync call."""

    HONEST = "passes"
    IGNORED = "answers success and does nothing"
    FAILING = "answers EIO and does nothing"
    HANGING = "does not return until the mode changes"


class SyncFaults:
    """One process whose sync calls obey `mode`, which may be changed while it runs."""

    def __init__(self, mode: Sync = Sync.HONEST) -> None:
        self.mode = mode
        self.calls = 0
        self.hang_when: Callable[[], bool] = lambda: False
        """Is asked at every call; if it says so, the mode becomes HANGING."""
        self.hanging = False
        self._ended = threading.Event()
        # A name in the abstract namespace: no path that could be too long, and nothing to remove.
        self._name = f"metaq-sync-faults-{os.getpid()}-{secrets.token_hex(8)}"
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind("\0" + self._name)
        self._door.listen(1)
        self._door.settimeout(_START_TIMEOUT_S)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def prefix(self) -> list[str]:
        """Returns the prefix of a command; the process keeps the command's process id."""
        return [sys.executable, str(Path(__file__)), self._name]

    def stop(self) -> None:
        """Call it once the process is gone: its sync calls would hang."""
        self._ended.set()
        self._thread.join(timeout=_START_TIMEOUT_S)

    def _serve(self) -> None:
        with self._door, self._door.accept()[0] as link:
            link.settimeout(_START_TIMEOUT_S)
            _, listeners, _, _ = socket.recv_fds(link, 1, 1)
        if listeners:
            try:
                self._obey(listeners[0])
            finally:
                os.close(listeners[0])

    def _obey(self, listener: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        notification = ctypes.create_string_buffer(_NOTIFICATION.size)
        while not self._ended.is_set():
            ready = poll.poll(_POLL_MS)
            if not ready:
                continue
            if ready[0][1] & select.POLLHUP:
                return
            ctypes.memset(notification, 0, _NOTIFICATION.size)
            if libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), notification) != 0:
                continue
            self.calls += 1
            number = _NOTIFICATION.unpack(notification.raw)[0]
            if self.hang_when():
                self.mode = Sync.HANGING
            while self.mode is Sync.HANGING and not self._ended.is_set():
                self.hanging = True
                self._ended.wait(_POLL_MS / 1_000)
            self.hanging = False
            reply = ctypes.create_string_buffer(self._answer(number), _REPLY.size)
            libc.ioctl(listener, ctypes.c_ulong(_SEND), reply)

    def _answer(self, number: int) -> bytes:
        if self.mode is Sync.HONEST:
            return _REPLY.pack(number, 0, 0, _NOTIFICATION_CONTINUE)
        return _REPLY.pack(number, 0, 0 if self.mode is Sync.IGNORED else -errno.EIO, 0)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _install() -> int:
    """Installs the filter for this process and everything it executes; returns the listener."""
    numbers = sorted(_SYNC_CALLS[platform.machine()].values())
    steps = [struct.pack("=HBBI", _LOAD_WORD, 0, 0, 0)]
    for place, number in enumerate(numbers):
        steps.append(struct.pack("=HBBI", _JUMP_EQUAL, len(numbers) - place, 0, number))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _RETURN_ALLOW))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _RETURN_USER_NOTIFICATION))
    program = _Program(len(steps), b"".join(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    call = _SECCOMP_CALL[platform.machine()]
    listener = libc.syscall(call, _SET_MODE_FILTER, _FILTER_FLAG_NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


def _main() -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + sys.argv[1])
        listener = _install()
        socket.send_fds(link, [b"x"], [listener])
        os.close(listener)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    _main()
