"""Promise: routes are kept soon after they change, seldom, and again while they are right."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from delay_client.exchange.kept_routes import KeptRoutes, Places

BEFORE: dict[str, Places] = {"s": (("a", "a:1"),)}
NOW: dict[str, Places] = {"s": (("b", "b:1"),)}


@dataclass
class Keeper:
    kept: list[Mapping[str, Places]] = field(default_factory=list)

    def load(self) -> Mapping[str, Places]:
        return BEFORE

    def keep(self, routes: Mapping[str, Places]) -> None:
        self.kept.append(routes)


def test_what_another_process_was_told_is_known_and_not_kept_again() -> None:
    keeper = Keeper()
    routes = KeptRoutes(keeper, lambda: NOW)
    assert routes.known == BEFORE
    routes.poll(0, are_right=True)
    routes.poll(1e6, are_right=True)
    routes.close()
    assert keeper.kept == []
    assert routes.next_event() == math.inf


def test_news_is_kept_at_once_and_then_every_five_seconds() -> None:
    keeper = Keeper()
    routes = KeptRoutes(keeper, lambda: NOW)
    routes.note_news()
    routes.poll(100, are_right=False)
    assert keeper.kept == [NOW]
    routes.note_news()
    assert routes.next_event() == 105
    routes.poll(104.9, are_right=True)
    assert len(keeper.kept) == 1
    routes.poll(105, are_right=True)
    assert len(keeper.kept) == 2


def test_what_is_still_right_is_kept_again_each_hour_unless_nobody_can_say() -> None:
    keeper = Keeper()
    routes = KeptRoutes(keeper, lambda: NOW)
    routes.note_news()
    routes.poll(0, are_right=True)
    assert routes.next_event() == 3600
    routes.poll(3600, are_right=False)
    assert len(keeper.kept) == 1
    # Else the next event of the connection to the meta server would be hidden behind this one.
    assert routes.next_event() == 3605
    routes.poll(5000, are_right=True)
    assert len(keeper.kept) == 2
    assert routes.next_event() == 8600


def test_news_is_kept_when_the_client_ends() -> None:
    keeper = Keeper()
    routes = KeptRoutes(keeper, lambda: NOW)
    routes.note_news()
    routes.close()
    routes.close()
    assert keeper.kept == [NOW]


def test_a_client_that_was_told_nothing_leaves_what_is_kept_alone() -> None:
    keeper = Keeper()
    routes = KeptRoutes(keeper, dict)
    routes.note_news()
    routes.poll(0, are_right=True)
    assert keeper.kept == []


def test_without_a_keeper_nothing_is_known_and_nothing_is_due() -> None:
    routes = KeptRoutes(None, lambda: NOW)
    routes.note_news()
    assert routes.known == {}
    assert routes.next_event() == math.inf
    routes.poll(0, are_right=True)
    routes.close()
