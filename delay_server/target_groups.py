"""To which broker groups messages go: those of the settings, or those that routes lead to.

An operator's weights hold for either.
"""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import trio

from delay_protocol.meta.requests import ClientType
from delay_protocol.meta.session import MetaSession
from delay_server.lanes.new_subjects import NewSubjects
from delay_server.lanes.routes import SubjectRoutes
from delay_server.settings.config import DelayServerConfig
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.routes import MetaRoutes
from delay_transport.seams.runtime import Network
from sender.settings.config import BrokerGroup
from storage.batch.entries import SubjectTable


class TargetGroups:
    """Follows the routes of subjects, and has the sender deliver to what they lead to."""

    def __init__(
        self,
        config: DelayServerConfig,
        *,
        subjects: SubjectTable,
        network: Network,
        chance: Callable[[], random.Random],
        set_groups: Callable[[Iterable[BrokerGroup]], None],
        on_followed: Callable[[], None],
    ) -> None:
        """Ask a meta server where the settings name one.

        on_followed: hears that routes have changed, after the groups have.
        """
        self._config = config
        self._set_groups = set_groups
        self._on_followed = on_followed
        self._weights: dict[str, float] = {}
        """Of groups, as an operator says."""
        self.routes: SubjectRoutes | None = None
        """None where every message goes to any of the brokers in the settings."""
        self.new_subjects: NewSubjects | None = None
        """Likewise."""
        self.meta_routes: MetaRoutes | None = None
        if config.has_routes:
            self.routes = self._make_routes(subjects, network, chance)
            self.routes.on_taken = partial(self._follow, self.routes)
            self.new_subjects = NewSubjects(self.routes, subjects.ids)

    def _make_routes(
        self, subjects: SubjectTable, network: Network, chance: Callable[[], random.Random]
    ) -> SubjectRoutes:
        """Have a meta server asked for the route of each subject, as a producer would."""
        config = self._config
        session = MetaSession(
            client_type=ClientType.DELAY_SERVER,
            # As QMQ's delay server asks; whoever it is, it gets the same answer.
            client_id="",
            config=config.routes.session_config(),
            chance=chance(),
        )
        self.meta_routes = MetaRoutes(
            session,
            locator=MetaLocator(network, config.meta.http_addresses()),
            network=network,
            chance=chance(),
            on_changed=self._route_changed,
        )
        return SubjectRoutes(
            session,
            now=trio.current_time,
            name_of=subjects.names.__getitem__,
            on_wanted=self.meta_routes.wake,
        )

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Have groups weigh as an operator says."""
        if weights != self._weights:
            self._weights = dict(weights)
            self._deliver_to_targets()

    def _deliver_to_targets(self) -> None:
        """Deliver to the groups of the settings, or to those that any route leads to."""
        routes = self.routes
        groups = self._config.broker_groups() if routes is None else routes.targets()
        self._set_groups(
            dataclasses.replace(group, weight=self._weights.get(group.name, group.weight))
            for group in groups
        )

    def _route_changed(self, subject: str) -> None:
        """Send a subject's messages where a meta server says that they go from now on."""
        assert self.routes is not None
        self.routes.changed(subject)
        self._follow(self.routes)

    def follow(self) -> None:
        """Deliver to the groups that routes lead to, if these are others by now."""
        if self.routes is not None and self.routes.targets_changed:
            self._deliver_to_targets()

    def _follow(self, routes: SubjectRoutes) -> None:
        if routes.targets_changed:
            self._deliver_to_targets()
        self._on_followed()

    def round(self) -> Iterator[None]:
        """Forget, in steps, the routes of subjects that are not in use."""
        if self.routes is not None:
            for _ in self.routes.round():
                self._follow(self.routes)
                yield
