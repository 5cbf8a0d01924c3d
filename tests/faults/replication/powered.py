"""Nodes of a group on disks that can lose their power."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.faults.disks import LoopDisk, loop_disk
from tests.faults.replication.nodes import BrokerNode
from tests.support.serving import MIB

# In a mount namespace of its own, which must not hold on to the disks of the others.
FAKE_BOOT = """
mount --bind "$1" /proc/sys/kernel/random/boot_id || exit 1
for disk in "$2"/disk-*/disk; do [ "$disk" = "$3" ] || umount "$disk"; done
shift 3
exec "$@"
"""


class PoweredNodes:
    """Nodes whose disks can lose power, each in a file system of its own."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home, self._stack = home, stack
        self.disks: dict[int, LoopDisk] = {}
        self.boots = 0

    def prepare(self, node: BrokerNode) -> None:
        folder = self._home / f"disk-{node.id}"
        folder.mkdir()
        self.disks[node.id] = self._stack.enter_context(loop_disk(folder, 128 * MIB))
        node.data = self.disks[node.id].path / "data"
        self._boot(node)

    def lose_power(self, *nodes: BrokerNode) -> None:
        """Stops them all at once, drops what was not synced, and mounts the disks again after a reboot."""
        for node in nodes:
            node.freeze()
        for node in nodes:
            self.disks[node.id].lose_power()
        for node in nodes:
            node.kill()
            self.disks[node.id].unmount()
            self.disks[node.id].mount()
            self._boot(node)

    def _boot(self, node: BrokerNode) -> None:
        """Shows the process another boot id: the kernel of the test does not reboot."""
        self.boots += 1
        file = self._home / f"boot-{self.boots}"
        file.write_text(f"00000000-0000-4000-8000-{self.boots:012}\n")
        own = self.disks[node.id].path
        arguments = (str(file), str(self._home), str(own))
        node.prefix = ("unshare", "--mount", "sh", "-c", FAKE_BOOT, "sh", *arguments)
