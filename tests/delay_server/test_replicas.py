"""Who cannot prove the secret to a master hears of a master; the log has few lines."""

import random
from pathlib import Path

import trio
from structlog.testing import capture_logs

from delay_protocol.basics.codes import CommandCode
from delay_server.accepting.admission import Admission, AdmissionConfig
from delay_server.accepting.ingest import Ingest
from delay_server.replicas import Slaves
from delay_transport.connections.request_client import RequestConnection
from delay_transport.http.credentials import Credentials
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.meta.requests import MetaRefusedError
from delay_transport.meta.talk import prove
from tests.delay_transport.peers import ADDRESS, StreamNetwork, serving
from tests.simulation.clock import SimClock


async def refusal_of(network: StreamNetwork, secret: bytes) -> str:
    """Ask a master to follow, with this secret; return how that is refused."""
    connection = RequestConnection()
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        talk = await prove(
            connection, secret, chance=random.Random(1), timeout_s=5, who="the master"
        )
        refused = ""
        try:
            await talk.ask(CommandCode.FOLLOW, b"", 5)
        except MetaRefusedError as error:
            refused = str(error)
        connection.close("asked")
        nursery.cancel_scope.cancel()
    return refused


def ingest_with(secret: SharedSecret) -> Ingest:
    """Return the handler of the port of a node that is no master."""
    ingest = Ingest(
        admission=Admission(AdmissionConfig()),
        limits=AdmissionConfig(),
        clock=SimClock(),
        trusted_ms=lambda: 0,
        why_not=str,
    )
    credentials = Credentials(secret, is_needed=True, chance=random.Random(2))
    ingest.slaves = Slaves(lambda: None, credentials)
    return ingest


async def test_a_slave_without_the_secret_hears_of_the_master_and_is_logged_once_a_minute() -> None:
    secret = SharedSecret(Path("secret"))
    secret.entries = (b"s" * 32,)
    port = ingest_with(secret)
    refused = ""
    with capture_logs() as logs:
        async with serving(port) as (_, network):
            for _ in range(100):
                refused = await refusal_of(network, b"t" * 32)
                await trio.sleep(1)
    assert refused.startswith("the master at server.test:20801 could not authenticate this node: ")
    assert refused.endswith("was not made with a secret of this server: the files differ")
    lines = [one for one in logs if one["event"] == "a slave does not prove the secret"]
    assert [one.get("repeated", 0) for one in lines] == [0, 59]


async def test_a_master_that_has_no_secret_yet_does_not_say_that_the_files_differ() -> None:
    port = ingest_with(SharedSecret(Path("none")))
    async with serving(port) as (_, network):
        refused = await refusal_of(network, b"t" * 32)
    assert "the files differ" not in refused
    assert "cannot be used; its log says why" in refused
