"""For the tests of services: a cluster without processes, whose clock stands still.

    cluster = FakeCluster()
    async with cluster.client() as client, cluster.receiver("tea", subjects=["tea.*"]) as receiver:
        await client.send("tea.ready", "oolong", delay=timedelta(hours=3))
        await cluster.advance(hours=3)
        async for message in receiver: ...

The clients and receivers are the real ones but for their connections, so they check and encode what
is sent, decide about retries and settle as those do. tests/contract holds both to the same tests.

    cluster         clients, receivers, and the clock that tests move
    schedule        what a cluster keeps, and for whom
    pytest_fixture  a cluster for each test that asks for one
"""

from delay_client.testing.cluster import FakeClient, FakeCluster, FakeReceiver
from delay_client.testing.schedule import StoredMessage

__all__ = ["FakeClient", "FakeCluster", "FakeReceiver", "StoredMessage"]
