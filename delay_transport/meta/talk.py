"""Requests of a delay server to whoever knows the same secret: sealed, where there is one."""

import random

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.auth import (
    NONCE_SIZE,
    Challenge,
    Direction,
    decode_challenge,
    encode_challenge,
    seal,
    session_key,
    unseal,
)
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.requests import MetaRefusedError, require_success


class Talk:
    """A connection to a meta server or a master, and what both sides prove on it."""

    def __init__(self, connection: RequestConnection, key: bytes | None, who: str) -> None:
        self.connection = connection
        self.who = who
        """The peer that answers, for people: `the master`."""
        self.key = key
        """What to seal with; None where nothing is to be proved."""
        self._number = 0

    async def ask(self, code: int, body: bytes, timeout_s: float) -> bytes:
        """Send a request with this body; return the body of the answer to it.

        Raises TransportError, or MetaRefusedError for what is no success, or proves nothing.
        """
        connection, key = self.connection, self.key
        self._number = number = self._number + 1
        if key is not None:
            body = seal(key, Direction.REQUEST, code, number, body)
        answer = await connection.request(code, body, timeout_s=timeout_s)
        require_success(answer, f"{self.who} at {connection.peer}")
        if key is None:
            return answer.body
        found = unseal([key], Direction.ANSWER, code, answer.body)
        if found is None or found[1] != number:
            raise MetaRefusedError(
                f"the answer of {connection.peer} does not prove that it has the secret: somebody "
                "else may answer in its place"
            )
        return found[2]


async def prove(
    connection: RequestConnection,
    secret: bytes | None,
    *,
    chance: random.Random,
    timeout_s: float,
    who: str = "the meta server",
) -> Talk:
    """Begin to talk; where there is a secret by what proves it on this connection.

    Raises TransportError, MetaRefusedError or MalformedMetaError.
    """
    if secret is None:
        return Talk(connection, None, who)
    nonce = chance.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE)
    answer = await connection.request(
        CommandCode.NODE_CHALLENGE,
        encode_challenge(Challenge(nonce=nonce)),
        timeout_s=timeout_s,
    )
    require_success(answer, f"{who} at {connection.peer}")
    meta_nonce = decode_challenge(answer.body).nonce
    key = session_key(secret, node_nonce=nonce, meta_nonce=meta_nonce)
    return Talk(connection, key, who)
