"""Whether delay servers prove that they have the secret (delay_protocol/nodes/auth.py).

A meta server asks it of those that register, and a master of those that follow it.

    the file   secret_needed   a node with the secret   with a wrong one   without one
    none       -               refused                  refused            taken
    is set     False           taken, and sure of us    refused            taken
    is set     True            taken, and sure of us    refused            refused

A node that has a secret wants the answers sealed as well: it does not believe a meta server that
has none, so that nobody who answers in the place of one can end it. To prove something is to ask
for a challenge first: after that, everything on the connection has to be sealed.
"""

import hmac
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from delay_protocol.nodes.auth import (
    NONCE_SIZE,
    Challenge,
    Direction,
    decode_challenge,
    encode_challenge,
    receiver_token,
    session_key,
    unseal,
)
from delay_protocol.nodes.auth import seal as seal_body
from delay_transport.connections.connection import Connection
from delay_transport.http.shared_secret import SharedSecret


class UnauthenticatedError(Exception):
    """The caller has not proved the secret; the text says why."""


@dataclass(slots=True)
class _Talk:
    """The nonces of a connection, and the last request number."""

    node_nonce: bytes
    meta_nonce: bytes
    number: int = 0


class Credentials:
    """Checks requests of delay servers, and seals the answers. Touches no file."""

    def __init__(self, secret: SharedSecret, *, is_needed: bool, chance: random.Random) -> None:
        """`chance` draws nonces; the server reloads `secret` when its file changes."""
        self._secret = secret
        self._is_needed = is_needed
        self._chance = chance
        self._talks: dict[Connection, _Talk] = {}
        self.unauthenticated = 0
        """Requests that were refused."""
        self.authenticated = 0
        """Requests that proved it."""

    @property
    def policy(self) -> str:
        """Say who has to prove it: `none`, `optional` or `required`."""
        if not self._secret.is_set:
            return "none"
        return "required" if self._is_needed else "optional"

    def forget(self, connection: Connection) -> None:
        """Forget what was drawn for a connection that is closed."""
        self._talks.pop(connection, None)

    def is_proven(self, connection: Connection) -> bool:
        """Say whether a connection from which something was opened proves a secret.

        It does from its challenge on: nothing that is not sealed is taken there any more.
        """
        return connection in self._talks

    def challenge(self, connection: Connection, body: bytes) -> bytes:
        """Return the answer to NODE_CHALLENGE; raise MalformedMetaError, UnauthenticatedError."""
        asked = decode_challenge(body)
        if not self._secret.is_set:
            raise self._refusal(
                "this server has no secret to prove: set registration.secret_file, or "
                "meta.secret_file of a delay server"
            )
        nonce = self._chance.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE)
        self._talks[connection] = _Talk(node_nonce=asked.nonce, meta_nonce=nonce)
        return encode_challenge(Challenge(nonce=nonce))

    def open(
        self, connection: Connection, code: int, body: bytes
    ) -> tuple[bytes, Callable[[bytes], bytes]]:
        """Return the body of a request, and what seals its answer; raise UnauthenticatedError."""
        talk = self._talks.get(connection)
        if talk is None:
            if self._secret.is_set and self._is_needed:
                raise self._refusal(
                    "delay servers have to prove the secret of this server: set meta.secret_file"
                )
            return body, bytes
        # Of the secrets that count now: one that was taken out of the file ends what it began.
        keys = [
            session_key(secret, node_nonce=talk.node_nonce, meta_nonce=talk.meta_nonce)
            for secret in self._secret.entries
        ]
        found = unseal(keys, Direction.REQUEST, code, body)
        if found is None:
            raise self._refusal(
                "the request was not made with a secret of this server: the files differ"
                if self._secret.entries
                else "the file of this server's secret cannot be used; its log says why"
            )
        key, number, inner = found
        if number <= talk.number:
            raise self._refusal(f"number {number} was used before: the request is a replay")
        talk.number = number
        self.authenticated += 1
        return inner, partial(seal_body, key, Direction.ANSWER, code, number)

    def why_not_receive(self, name: str, token: str) -> tuple[str, bool]:
        """Return why whoever has this token may not receive under a name, and whether for good.

        The reason is empty if it may.
        """
        if not (self._secret.is_set and self._is_needed):
            return "", False
        if not self._secret.entries:
            return "the file of the secret is not read, so tokens cannot be looked at yet", False
        tokens = [receiver_token(secret, name) for secret in self._secret.entries]
        if any(hmac.compare_digest(one.encode(), token.encode()) for one in tokens):
            return "", False
        self.unauthenticated += 1
        reason = (
            f"the token is not that of receivers of {name!r}: `delaywheel admin token receiver` "
            "makes it from the secret"
        )
        return reason, True

    def token_of_receiver(self, name: str) -> str:
        """Return the token to receive under a name; empty where there is no secret."""
        entries = self._secret.entries
        return receiver_token(entries[0], name) if entries else ""

    def _refusal(self, reason: str) -> UnauthenticatedError:
        self.unauthenticated += 1
        return UnauthenticatedError(reason)
