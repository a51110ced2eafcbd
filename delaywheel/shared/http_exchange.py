"""One question to a server's HTTP port and its answer in JSON, for the commands that ask."""

import http.client
import socket
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from delaywheel.shared.failures import ExitCode, Failure

ANSWER_BYTES_MAX: Final = 64 << 20
"""Bytes of one answer: everything at a glance of thousands of groups has a few MB."""

_SERVER_FAULT: Final = 500
"""From this status on it is not the request that was wrong."""

Json = dict[str, Any]


def ask_json(
    address: str,
    method: str,
    target: str,
    *,
    body: Mapping[str, object] | None = None,
    headers: Mapping[str, str],
    timeout_s: float,
    server: str,
) -> tuple[int, Json]:
    """Return the HTTP status and the answer; that of a refusal has a `detail` and a `code`.

    Raises Failure without an answer, or if it is not of a `server` (a "meta server").
    """
    from delay_transport.seams.runtime import parse_peer_address

    host, port = parse_peer_address(address)
    headers = {"Accept": "application/json", **headers}
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = msgspec.json.encode(body)
    # Plain http.client: no proxy from the environment gets between, or to see the token.
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, target, body=data, headers=headers)
        with connection.getresponse() as response:
            answer = response.read(ANSWER_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException, socket.gaierror) as error:
        raise Failure(
            f"no {server} answers at {address}: {error}; is this its http.address?",
            ExitCode.NETWORK,
        ) from error
    finally:
        connection.close()
    try:
        found: Json = msgspec.json.decode(answer, type=dict[str, Any])
        if response.status >= 400:
            # Whoever refuses without a reason is somebody else.
            found["detail"], found["code"]
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        TypeError,
    ) as bad:
        if response.status >= _SERVER_FAULT:
            raise Failure(
                f"the process at {address} failed (HTTP {response.status}): see the log of the "
                f"{server}, or of a proxy in front of it",
                ExitCode.REFUSED,
            ) from bad
        raise Failure(
            f"what answers at {address} is no {server}: is this its http.address?",
            ExitCode.NETWORK,
        ) from bad
    return response.status, found
