"""Takes from a worker everything that filter functions do not need: files, the network and other processes.

Linux does this for a process of the same account. Landlock (Linux 5.13) allows it to read Python, the
operator's functions and nothing else, and to write nothing. A seccomp filter refuses sockets, signals to
others and looks into their memory. Both also hold for the children of the process, and cannot be undone.

Neither needs a privilege, but a kernel or a container may lack one of them. `restrict` then returns what is
not protected, and the broker logs it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION: Final = 1
_LANDLOCK_PATH_BENEATH: Final = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS_BY_VERSION: Final = (0, 13, 14, 15, 15, 16)
"""How many rights to files each version of Landlock knows; later ones know as many as the last."""
_SCOPES_SINCE: Final = 6
_SCOPES: Final = 0b11
"""No abstract sockets and no signals beyond the processes that are restricted."""

_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/bin"),
    *("/etc/localtime", "/etc/timezone", "/etc/ld.so.cache"),
    # Libraries for numbers look at the processor.
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *("/dev/zero", "/dev/urandom", "/dev/random"),
)
_WRITABLE: Final = ("/dev/null",)

_AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_CALLS: Final = 0x4000_0000
_REFUSED_CALLS: Final[dict[str, tuple[int, int]]] = {
    # The numbers on x86_64 and on aarch64.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    # Its work does not pass this filter.
    "io_uring_setup": (425, 425),
}
_NETWORK_CALLS: Final = {"socket": (41, 198)}
_SIGNAL_CALLS: Final = {"kill": (62, 129), "tgkill": (234, 131)}
"""Allowed for the process itself only."""

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_CALL_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW: Final = 0x7FFF_0000
_REFUSE: Final = 0x0005_0000 | errno.EPERM


def restrict(
    readable: Iterable[str] = (), private: Iterable[str] = (), *, network: bool = False
) -> tuple[str, ...]:
    """Restricts this process for good; call it while there is one thread. Returns what is not protected.

    `readable` are the folders and files that functions may read besides Python. `private` are those of the
    broker: if one of them lies inside something readable, that is part of the answer.
    """
    allowed = [path for path in (*_SYSTEM, *_of_python(), *readable) if Path(path).exists()]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return (f"files, the network and other processes ({_error()})",)
    unprotected = [*_restrict_files(libc, allowed), *_restrict_calls(libc, network)]
    if not unprotected or not unprotected[0].startswith("files"):
        unprotected += _overlaps(allowed, private)
    if network:
        unprotected.append("the network (filter_network is on)")
    return tuple(unprotected)


def _of_python() -> list[str]:
    roots = (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).parent))
    return [str(Path(path).absolute()) for path in dict.fromkeys((*roots, *sys.path)) if path]


def _overlaps(allowed: Sequence[str], private: Iterable[str]) -> list[str]:
    found = []
    for path in private:
        target = Path(path).resolve()
        above = [root for root in allowed if target.is_relative_to(Path(root).resolve())]
        if above:
            found.append(f"{path} (it lies in {above[0]}, which functions may read)")
    return found


# Files


def _restrict_files(libc: ctypes.CDLL, allowed: Sequence[str]) -> list[str]:
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return [f"files (Landlock: {_error()})"]
    rights = (1 << _FILE_RIGHTS_BY_VERSION[min(version, len(_FILE_RIGHTS_BY_VERSION) - 1)]) - 1
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    # Sockets are left to the other filter, because Landlock knows only some kinds of them.
    attributes = struct.pack("=QQQ", rights, 0, scopes) if scopes else struct.pack("=Q", rights)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return [f"files (Landlock: {_error()})"]
    try:
        for path in allowed:
            _allow(libc, ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
        for path in _WRITABLE:
            _allow(libc, ruleset, path, _READ_FILE | _WRITE_FILE)
        if libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
            return [f"files (Landlock: {_error()})"]
    finally:
        os.close(ruleset)
    return []


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, granted: int) -> None:
    """A path that cannot be opened is not allowed, which harms nobody but the function."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir():
            granted &= ~_READ_DIR
        rule = struct.pack("=Qi", granted, descriptor)
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


# Calls of the system


def _restrict_calls(libc: ctypes.CDLL, network: bool) -> list[str]:
    what = "other processes" if network else "the network and other processes"
    machine = platform.machine()
    if machine not in _AUDIT_ARCHITECTURES:
        return [f"{what} (no filter of system calls for {machine})"]
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(machine, os.getpid(), network))
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(steps))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        return [f"{what} (seccomp: {_error()})"]
    return []


def _program(machine: str, own_pid: int, network: bool) -> list[tuple[int, int, int, int]]:
    """The filter: each step is an operation, how many steps to skip if it holds or not, and its number."""
    column = list(_AUDIT_ARCHITECTURES).index(machine)
    refused = [numbers[column] for numbers in _REFUSED_CALLS.values()]
    refused += [] if network else [numbers[column] for numbers in _NETWORK_CALLS.values()]
    refuse, allow = (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine]),
        refuse,
        (_LOAD, 0, 0, _CALL_AT),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        refuse,
    ]
    for number in refused:
        steps += [(_EQUAL, 0, 1, number), refuse]
    for numbers in _SIGNAL_CALLS.values():
        steps += [
            (_EQUAL, 0, 4, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, 0, 1, own_pid),
            allow,
            refuse,
        ]
    return [*steps, allow]


def _error() -> str:
    return os.strerror(ctypes.get_errno())
