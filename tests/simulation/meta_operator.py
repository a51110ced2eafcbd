"""An operator of a simulated meta server: asks until what he wants is done, or is refused.

He goes the one way that there is, the writer's queue, and what he was told is what counts.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import trio

from delay_protocol.nodes.controls import Controls, GroupControl
from meta_server.admin.parts import Parts, Plan, Planned
from meta_server.known.commits import Intent
from meta_server.known.errors import MetaServerError, RefusedError
from meta_server.known.model import Change
from meta_server.server import MetaServer
from tests.kit.plans import put, removal

_ANSWERED_S = 10.0
"""For which he waits for an answer."""
_PAUSE_S = 2.0
"""After which he asks again."""
_OF_SUBJECTS = 0.6
"""Of the changes that are drawn so many are of subjects."""

_Fields = dict[str, object]

_PAUSES: tuple[bool | None, ...] = (True, True, True, False, False, None)
"""What is drawn for a rule of a subject; None: that it goes."""
_GROUP_FIELDS: tuple[_Fields | None, ...] = (
    {"paused": True},
    {"paused": False},
    {"rate_per_s": 5.0},
    {"rate_per_s": None},
    {"weight": 0.5},
    {"weight": 3.0},
    None,
)


class MetaOperator:
    """Changes things at whichever meta server answers."""

    def __init__(self, server: Callable[[], MetaServer | None], *, within_s: float) -> None:
        """`server`: the one that answers now; everything is done or refused `within_s`."""
        self._server = server
        self._within_s = within_s

    async def change(self, plan: Plan, *, cluster: str | None = None) -> bool:
        """Have something changed, asking again until it is; say whether it was not refused.

        `cluster`: whose controls it changes. AssertionError if nobody answers.
        """
        give_up_s = trio.current_time() + self._within_s
        errors: list[MetaServerError | None] = []
        while trio.current_time() < give_up_s:
            server = self._server()
            if server is not None:
                if cluster is not None and server.handlers.group_changes.ahead(cluster):
                    # As whoever asks over HTTP is refused: a node has newer ones.
                    return False
                errors = await self._ask(server, plan)
                if errors == [None]:
                    return True
                if errors and isinstance(errors[0], RefusedError):
                    return False
            await trio.sleep(_PAUSE_S)
        raise AssertionError(f"serves: an operator cannot change anything: {errors}")

    async def _ask(self, server: MetaServer, plan: Plan) -> list[MetaServerError | None]:
        """Ask once; return what was answered, nothing if nobody did."""
        ended = trio.Event()
        errors: list[MetaServerError | None] = []

        def done(error: MetaServerError | None) -> None:
            errors.append(error)
            ended.set()

        def planned() -> Sequence[Change]:
            return plan(server.parts.asked_by("operator")).changes

        try:
            server.committer.submit(Intent(keys=(), plan=planned, done=done))
        except MetaServerError:
            # There is no room, or no store, for the moment.
            return []
        with trio.move_on_after(_ANSWERED_S):
            await ended.wait()
        return errors


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of the controls of a cluster."""

    what: str
    plan: Plan
    fits: Callable[[Controls], bool]
    """Whether controls are as they are after it."""


def subject_change(cluster: str, pattern: str, *, paused: bool) -> RuleChange:
    """Return the change of the rule of a subject, or prefix."""

    def fits(controls: Controls) -> bool:
        return _has(controls.subjects.get(pattern), {"paused": paused})

    plan = put("subject-rule", cluster, pattern, paused=paused)
    return RuleChange(f"subject {'prefix' if pattern.endswith('*') else 'rule'}", plan, fits)


def group_change(cluster: str, name: str, **fields: object) -> RuleChange:
    """Return the change of fields of the rule of a broker group."""

    def plan(parts: Parts) -> Planned:
        rule = parts.registry.controls_of(cluster).groups.get(name, GroupControl())
        wanted = msgspec.structs.asdict(rule) | fields
        return put("group-rule", cluster, name, **wanted)(parts)

    def fits(controls: Controls) -> bool:
        return _has(controls.groups.get(name), fields)

    return RuleChange("group weight" if "weight" in fields else "group rule", plan, fits)


def no_subject_rule(cluster: str, pattern: str) -> RuleChange:
    """Return the removal of the rule of a subject, or prefix."""
    plan = removal("subject-rule", cluster, pattern)
    return RuleChange("rule removed", plan, lambda controls: pattern not in controls.subjects)


def no_group_rule(cluster: str, name: str) -> RuleChange:
    """Return the removal of the rule of a broker group."""
    plan = removal("group-rule", cluster, name)
    return RuleChange("rule removed", plan, lambda controls: name not in controls.groups)


def draw_rule_change(
    chance: random.Random, cluster: str, *, patterns: Sequence[str], groups: Sequence[str]
) -> RuleChange:
    """Draw what an operator may do: pause, resume, limit, weigh, or take a rule away."""
    if chance.random() < _OF_SUBJECTS:
        pattern, paused = chance.choice(patterns), chance.choice(_PAUSES)
        if paused is None:
            return no_subject_rule(cluster, pattern)
        return subject_change(cluster, pattern, paused=paused)
    group, fields = chance.choice(groups), chance.choice(_GROUP_FIELDS)
    return (
        no_group_rule(cluster, group) if fields is None else group_change(cluster, group, **fields)
    )


def _has(rule: object, fields: _Fields) -> bool:
    if rule is None:
        return not any(fields.values())
    return all(getattr(rule, name) == value for name, value in fields.items())
