"""The HTTP of a cluster, asked by a gateway: its meta servers, and the master of each delay group.

The masters are asked at the same time, and each answer is bounded in time and size. A group that
gives no answer is named beside the answers of the others: it may have more of what was asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from delay_transport.http.problems import Problem, RequestError
from delay_transport.http.server_tokens import token_for_named, token_for_node
from delay_transport.seams.errors import AddressError
from delay_transport.seams.runtime import format_address, parse_peer_address
from gateway.refusals import NoAnswerError

ANSWER_S: Final = 20.0
"""Seconds for an answer, with the wait for a connection."""
CONNECT_S: Final = 3.0
"""Seconds for a connection to be made."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer."""
AT_ONCE: Final = 8
"""Requests to one server at a time; others wait for their turn. A delay server takes so many."""
LOOKS_MAX: Final = 32
"""Questions to all masters at a time: their answers are in memory. One more is refused."""
GROUPS_S: Final = 1.0
"""Seconds for which it is known who is the master of which group."""

_OF_THE_REQUEST: Final = {400, 413, 415}
"""Refusals of what is asked: another server would refuse it as well."""
_TOLD_MAX: Final = 5
"""Failures that are told where nobody answers."""

Json = dict[str, Any]
Query = Mapping[str, object]
_NOTHING: Final[Mapping[str, Any]] = {}


class Answers(NamedTuple):
    """Answers of the masters of delay groups."""

    by_group: dict[str, Json]
    """The answers, by delay group, in the order of the names."""
    away: dict[str, str]
    """Why other groups gave none, by name. The whole is complete if this is empty."""


class Cluster:
    """Asks the servers of a cluster over HTTP; used as `async with Cluster(...) as cluster`."""

    def __init__(self, metas: Sequence[str], tokens: Mapping[str, str]) -> None:
        """Ask these meta servers, host:port, the first that answers.

        tokens: as `read_server_tokens()` returns them; {} where the servers need none. Raises
        AddressError.
        """
        self.metas = [_host_and_port(meta) for meta in metas]
        """The one that answers first."""
        self._tokens = tokens
        self._groups: dict[str, Json] = {}
        self._known_until = 0.0
        self._looks = 0

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=AT_ONCE),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._session.close()

    async def ask_meta(
        self,
        method: str,
        *path: str,
        query: Query = _NOTHING,
        body: object = None,
        headers: Mapping[str, str] = _NOTHING,
    ) -> Json:
        """Return the answer of the first meta server that gives one.

        path: parts below /api/v1, as they are; parameters that are None are left out

        A change is asked of one alone, which may have made it where it gives no answer. Raises
        RequestError: a refusal as the meta server says it, or NoAnswerError.
        """
        why = ""
        target = _target(("api", "v1", *path), query)
        for meta in self.metas[:] if method == "GET" else self.metas[:1]:
            try:
                shown = _bearer(token_for_named(self._tokens, meta))
                return await self._ask(meta, method, target, body, {**headers, **shown})
            except NoAnswerError as error:
                why = str(error)
                # The one that answers is asked first the next time.
                self.metas.remove(meta)
                self.metas.append(meta)
        raise NoAnswerError(f"no meta server answers: {why}")

    async def ask_master(
        self, group: str, method: str, *path: str, query: Query = _NOTHING, body: object = None
    ) -> Json:
        """Return the answer of the master of a delay group.

        path: parts of the path, as they are; parameters that are None are left out

        Raises RequestError: 404 if there is no such group, a refusal as the master says it, or
        NoAnswerError.
        """
        record = (await self.groups()).get(group)
        if record is None:
            raise RequestError(404, "unknown", f"there is no delay group {group[:100]!a}")
        address = _address_of_master(record)
        try:
            shown = _bearer(token_for_node(self._tokens, address))
            return await self._ask(address, method, _target(path, query), body, shown)
        except RequestError as error:
            if error.code not in _OF_THE_REQUEST:
                # Perhaps another node is the master by now.
                self._known_until = 0.0
            raise

    async def ask_masters(
        self, *path: str, query_of: Callable[[str], Query] = lambda _: _NOTHING
    ) -> Answers:
        """Return the answers of the masters of all delay groups to a GET.

        query_of: the parameters for a delay group

        Raises RequestError for a request that is refused for what it is, or is one too many, and
        NoAnswerError if nobody answers.
        """
        if self._looks >= LOOKS_MAX:
            why = f"{LOOKS_MAX} requests ask all delay groups just now: ask again"
            raise RequestError(429, "busy", why, retry_after_s=1)
        self._looks += 1
        try:
            found = await self.of_all(
                lambda group: self.ask_master(group, "GET", *path, query=query_of(group))
            )
        finally:
            self._looks -= 1
        if not found.by_group:
            told = "; ".join(list(found.away.values())[:_TOLD_MAX])
            raise NoAnswerError(told or "no delay server has registered at the meta server yet")
        return found

    async def of_all(self, act: Callable[[str], Awaitable[Json]]) -> Answers:
        """Return what `act` returns for each delay group; all are asked at the same time.

        Raises RequestError for a request that is refused for what it is.
        """
        names = sorted(await self.groups())
        ends = await asyncio.gather(*map(act, names), return_exceptions=True)
        found = Answers({}, {})
        for name, end in zip(names, ends, strict=True):
            if isinstance(end, RequestError) and end.code not in _OF_THE_REQUEST:
                found.away[name] = str(end)
            elif isinstance(end, BaseException):
                raise end
            else:
                found.by_group[name] = end
        return found

    async def groups(self) -> Mapping[str, Json]:
        """Return the meta server's record of each delay group, by its name: a second old at most.

        Raises RequestError.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._known_until:
            rows: list[Json] = []
            after: str | None = ""
            while after is not None:
                page = await self.ask_meta("GET", "delay-group", query={"after": after})
                rows += page["items"]
                after = page["next"]
            self._groups = {row["name"]: row for row in rows}
            self._known_until = now + GROUPS_S
        return self._groups

    async def _ask(
        self, address: str, method: str, target: str, body: object, headers: dict[str, str]
    ) -> Json:
        """Return the answer of one server; raise RequestError."""
        data = bytearray()
        try:
            async with self._session.request(
                method,
                URL(f"http://{address}{target}", encoded=True),
                data=None if body is None else msgspec.json.encode(body),
                headers=headers | {"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                async for part in response.content.iter_any():
                    data += part
                    if len(data) > ANSWER_BYTES_MAX:
                        raise NoAnswerError(
                            f"{address} answers with more than {ANSWER_BYTES_MAX} bytes: ask for "
                            "less"
                        )
        except TimeoutError as error:
            raise NoAnswerError(f"{address} gives no answer within {ANSWER_S:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(f"{address} does not answer: {error}") from error
        return _answer_of(address, response.status, bytes(data))


def _host_and_port(text: str) -> str:
    """Return the host:port of an address, or of a URL that is one; raise AddressError."""
    return format_address(parse_peer_address(text.removeprefix("http://").rstrip("/")))


def _address_of_master(record: Json) -> str:
    """Return the address of the master's HTTP of a delay group; raise NoAnswerError."""
    for node in record["nodes"]:
        if node["node_id"] == record["master"]:
            try:
                return _host_and_port(node["http_address"])
            except AddressError as error:
                why = f"the master of {record['name']} cannot be asked over HTTP: {error}"
                raise NoAnswerError(why) from error
    why = record["election"] or "one is elected"
    raise NoAnswerError(f"{record['name']} has no master: {why}")


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _target(path: Sequence[str], query: Query) -> str:
    """Return path and query of a URL."""
    target = "".join(f"/{quote(part, safe='')}" for part in path)
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }
    return f"{target}?{urlencode(texts)}" if texts else target


def _answer_of(address: str, status: int, data: bytes) -> Json:
    """Return what a server answered; raise RequestError for a refusal."""
    try:
        if status < 400:
            return msgspec.json.decode(data, type=dict[str, Any])
        problem = msgspec.json.decode(data, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"what answers at {address} (HTTP {status}) is no server of a cluster"
        raise NoAnswerError(why) from error
    if status in {401, 403}:
        why = f"{address}: {problem.detail}: see --cluster-token-file of the gateway"
        raise RequestError(502, "cluster-token", why)
    retry_after_s = 1 if status in {429, 503} else 0
    raise RequestError(status, problem.code, problem.detail, retry_after_s=retry_after_s)
