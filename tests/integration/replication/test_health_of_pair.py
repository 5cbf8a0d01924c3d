"""The health of a master and its replica: in sync, without the replica, without the master."""

from __future__ import annotations

from pathlib import Path

from metaq.admin import Health, aio
from tests.support.broker_cluster import started_nameserver
from tests.support.broker_group import BrokerGroup
from tests.support.waiting import run, until

PAIR = (0, 1)


def critical(health: Health) -> set[str]:
    return {finding.kind for finding in health.findings if finding.severity == "critical"}


def test_health_follows_the_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR) as group,
            aio.Admin(nameserver.address) as admin,
        ):
            await group.start()
            await group.master()

            async def kinds_become(wanted: set[str]) -> Health:
                async def found() -> Health | None:
                    health = await admin.health.check()
                    return health if wanted <= critical(health) and health.healthy == (not wanted) else None

                health = await until(found, 90, f"critical findings {wanted}")
                assert health is not None
                return health

            health = await kinds_become(set())
            assert health.summary == "Healthy: 2 brokers answer."
            assert [(broker.id, broker.role) for broker in health.brokers] == [(0, "master"), (1, "replica")]
            await group.stop(1)
            health = await kinds_become({"node-gone"})
            assert health.summary.startswith(f"Unhealthy: in {group.name}, node 1 does not answer")
            await group.start(1)
            await kinds_become(set())
            await group.stop(0)
            health = await kinds_become({"node-gone"})
            assert f"In {group.name}, the master, node 0, does not answer" in " ".join(
                finding.text for finding in health.findings
            )

    run(scenario)
