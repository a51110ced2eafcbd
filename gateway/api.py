"""The API of a gateway: what all its operations share.

POST   /v1/messages/SUBJECT          a message: its body as it is            sending
POST   /v1/messages                  JSON: one message, or a list
GET    /v1/messages/TOKEN            what became of a message                looking
       /v1/messages?subject=         what waits, in pages
DELETE, PATCH                        cancel it; move it                      changing
       /v1/messages/TOKEN
       /v1/messages?subject=         all of a filter
       /v1/cluster, …                what operators look at and change       overview, operating

In the place of TOKEN there may be SUBJECT/ID.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from delay_client import Client, DelaywheelError
from delay_protocol.basics.subjects import Patterns
from delay_transport.http.access import Caller
from delay_transport.http.api import Api
from delay_transport.http.problems import Problem, RequestError
from gateway.cluster import Cluster
from gateway.overview import Live
from gateway.refusals import ChangeProblem, SendError, SendProblem
from gateway.webhooks.following import Webhooks

CURL_URL: Final = "http://127.0.0.1:8700/v1"
"""The address in examples."""

Act = TypeVar("Act", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Parts:
    """The parts of a gateway that operations work on."""

    client: Client
    cluster: Cluster
    webhooks: Webhooks
    live: Live
    accepted: int = 0
    """Messages that the cluster keeps."""


def _refusal_of(error: Exception) -> RequestError | None:
    return SendError(error) if isinstance(error, DelaywheelError) else None


API: Final = Api(
    title="delaywheel gateway",
    about="""\
Sends messages that are delivered later, and looks at, cancels and moves what waits. Bodies are kept
as they are. Give at most one of delay, moment and level; without one a message is due at once.""",
    prefix="/v1",
    other_refusals=_refusal_of,
    problem_types=(Problem, SendProblem, ChangeProblem),
    refusal_text="A refusal: docs/http.md has the statuses and their words.",
)


def of_message(method: str, curl: str, **declared: Any) -> Callable[[Act], Act]:  # noqa: ANN401 (fields of Operation)
    """Make two operations of a function, on a message by its token, and by its names.

    curl: what is before the URL in their examples
    """

    def declare(act: Act) -> Act:
        for path, by, example in (
            # One path, as OpenAPI tells no two apart that differ in the names of their parts alone.
            ("{subject_or_token}", "", "$TOKEN"),
            ("{subject}/{id:path}", "_by_id", "hello/$ID"),
        ):
            declared["example"] = f"{curl} {CURL_URL}/messages/{example}"
            API.operation(method, f"/messages/{path}", name=f"{act.__name__}{by}", **declared)(act)
        return act

    return declare


def check_subject(caller: Caller, subject: str | None) -> None:
    """Raise RequestError if a caller's token is not for a subject, or for all with a beginning.

    subject: None: all subjects
    """
    wanted = subject or "*"
    if not Patterns(caller.subjects).take(wanted):
        why = f"the token {caller.name} is not for {wanted[:100]!a}: ask for another"
        raise RequestError(403, "role", why)
