"""Reasons: why messages are not accepted, in sentences and as the errors of each message. Pure."""

from collections.abc import Sequence

from delay_client.exchange.batches import Batch, Lane
from delay_client.exchange.links import LinkState
from delay_client.exchange.routing import FixedRouting, MetaRouting
from delay_client.messages.errors import (
    ClientClosed,
    IllegalSubject,
    NoRoute,
    NotADelayServer,
    Overloaded,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.messages.message import Outcome

_ADVICE: dict[type[RetryableError], str] = {
    Unavailable: "check that a delay server that takes messages runs at these addresses, then send "
    "it again",
    Overloaded: "send more slowly, or with a longer timeout",
    TimedOut: "send it again with the same message id, or with a longer timeout",
}


def trouble(batch: Batch, routing: FixedRouting | MetaRouting) -> str:
    """Return why a batch is not accepted so far."""
    if batch.setback is not None:
        return f"{batch.setback.server} {batch.setback.text}"
    no_route = _why_no_route(batch.lane, routing)
    return _troubles(batch.lane) if no_route is None else no_route[0]


def given_up(batch: Batch, routing: FixedRouting | MetaRouting) -> Sequence[Outcome]:
    """Return the errors of messages that ran out of time, or whose subject is refused for good."""
    server: str | None = None
    lane = batch.lane
    if routing.refuses(lane):
        text = trouble(batch, routing)
        text = f"{text}: then send it again, or choose another subject"
        return [IllegalSubject(text, message_id=one, attempts=batch.attempts) for one in batch.ids]
    kind: type[RetryableError]
    if batch.setback is not None:
        kind, server = batch.setback.kind, batch.setback.server
        text = f"not accepted in time ({batch.attempts} tries): {server} {batch.setback.text}"
        if kind is not Unavailable and batch.setback.word:
            text += f"; before that {batch.setback.word}"
    elif (no_route := _why_no_route(lane, routing)) is not None:
        kind, text = NoRoute, ": ".join(no_route)
    elif any(link.is_answering for link in lane.links):
        kind, text = Overloaded, "not sent in time, the servers answer too slowly"
    elif any(link.state is LinkState.UP for link in lane.links):
        kind, text = TimedOut, "not sent, since no server has said in time that it is one"
    else:
        kind, text = Unavailable, f"no server could be reached ({_troubles(lane)})"
    if kind in _ADVICE:
        text += f": {_ADVICE[kind]}"
    return [
        kind(
            text,
            message_id=name,
            server=server,
            attempts=batch.attempts,
            maybe_kept=batch.maybe_kept,
        )
        for name in batch.ids
    ]


def not_delay_servers(batch: Batch, said: Sequence[str]) -> Sequence[Outcome]:
    """Return the errors of messages whose servers are no delay servers, as each has said."""
    text = f"{'; '.join(said)}: give a delay server's address, or the meta server's"
    return [NotADelayServer(text, message_id=name, attempts=batch.attempts) for name in batch.ids]


def closed(batch: Batch) -> Sequence[Outcome]:
    """Return the errors of messages that were on their way when the client was closed."""
    return [closed_before(name, attempts=batch.attempts) for name in batch.ids]


def closed_before(message_id: str, *, attempts: int) -> ClientClosed:
    """Return the error of a message that has no answer, and will get none."""
    return ClientClosed(
        "the client was closed before an answer came: send it again with the same message id",
        message_id=message_id,
        attempts=attempts,
    )


def _why_no_route(lane: Lane, routing: FixedRouting | MetaRouting) -> tuple[str, str] | None:
    """Return why a lane has no servers, and what to do; None if it has some."""
    if lane.subject is None:
        return None
    assert isinstance(routing, MetaRouting)
    return routing.why_no_route(lane.subject)


def _troubles(lane: Lane) -> str:
    return "; ".join(f"{link.server}: {link.trouble or 'no answer'}" for link in lane.links)
