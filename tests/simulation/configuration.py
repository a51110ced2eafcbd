"""The configuration of a simulated server, drawn from the seed: small where real nodes are large.

Every setting that changes what the code does is drawn by `draw_configuration`, at the start and
again for restarts with other settings. A bound that no simulated load would reach at its real size
is drawn small in a share of the seeds, and so are the ages after which files are deleted; what
configuration files refuse to set so small (sizes of files, steps) is set behind their back by
`SmallConfig` and `SmallStorage`.
"""

import dataclasses
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from delay_server.accepting.admission import AdmissionConfig
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.holding.wheel import WheelConfig
from delay_server.settings.config import (
    ClockConfig,
    DelayServerConfig,
    HttpConfig,
    ListenerConfig,
    NodeConfig,
)
from delay_transport.seams.runtime import Address, format_address
from sender.settings.config import SenderConfig
from tests.kit.settings import SmallStorage

SERVER_ADDRESS = ("10.0.0.1", 20801)
BROKER_ADDRESSES = {
    "g1": ("10.0.1.1", 20881),
    "g2": ("10.0.1.2", 20881),
    "g3": ("10.0.1.3", 20881),
    "g4": ("10.0.1.4", 20881),
}
"""All broker groups that a world may have."""
RECEIVER_GROUPS = ("r1", "r2")
"""All groups of receivers that a world may have."""
HORIZON_DAYS = 12

_MINUTE_MS = 60_000

_KEEP_MS = 400 * 86_400_000
"""Longer than any seed."""
_AGED_CHANCE = 0.2
_COMING_AND_GOING_FROM = 3
"""Where there are so many groups one may not be there in each life of the server."""
_WEIGHTS = (0.1, 1.0, 3.0, 100.0)
_SMALL_WHEEL_CHANCE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The broker groups of a world."""

    addresses: Mapping[str, Address]
    constant: tuple[str, ...]
    """Those that every configuration has; others come and go with restarts."""


def draw_groups(chance: random.Random, counts: Sequence[int] = ()) -> Groups:
    """Draw how many groups there are, one of `counts` if it is given."""
    count = chance.choice(counts) if counts else chance.choices((1, 2, 3, 4), (2, 3, 3, 2))[0]
    names = tuple(BROKER_ADDRESSES)[:count]
    is_last_constant = count < _COMING_AND_GOING_FROM or chance.random() < 0.5
    return Groups(
        addresses={name: BROKER_ADDRESSES[name] for name in names},
        constant=names if is_last_constant else names[:-1],
    )


def draw_weights(chance: random.Random, names: Iterable[str]) -> dict[str, float]:
    """Draw what each group is to get beside the others."""
    if chance.random() < 0.4:
        return dict.fromkeys(names, 1.0)
    return {name: chance.choice(_WEIGHTS) for name in names}


class SmallConfig(DelayServerConfig, frozen=True, kw_only=True):
    """A configuration with a smaller floor of free disk than a node would take."""

    floor_bytes: int = 1 << 20
    """Free disk below which messages are refused, whatever the size of the disk."""

    def disk_floor_bytes(self, total_bytes: int) -> int:
        """Return a floor that a simulated load reaches."""
        return min(self.floor_bytes, total_bytes)

    @property
    def disk_bytes_least(self) -> int:
        """Let a node start on any disk."""
        return 0


def draw_configuration(
    chance: random.Random,
    *,
    brokers: Mapping[str, Address],
    weights: Mapping[str, float],
    held_min: int = 1,
) -> SmallConfig:
    """Draw the settings of a life of the server that delivers to these broker groups.

    At least `held_min` messages may be held for delivery.
    """
    load_ahead_ms = chance.choice((5_000, 20_000, 60_000))
    minute_horizon = max(chance.randint(2, 12), math.ceil(2 * load_ahead_ms / _MINUTE_MS))
    aged = chance.random() < _AGED_CHANCE
    config = SmallConfig(
        node=NodeConfig(data_dir=Path("simulated"), cluster="c", group="dg1", node_id="n1"),
        brokers={
            name: f"{format_address(address)},weight={weights[name]}"
            for name, address in brokers.items()
        },
        sender=_draw_sender(chance, held_min),
        listener=ListenerConfig(
            address=format_address(SERVER_ADDRESS),
            in_flight_requests_max=_seldom(chance, (1, 3), 8192),
        ),
        admission=_draw_admission(chance),
        storage=SmallStorage(
            minute_horizon_minutes=minute_horizon,
            hour_horizon_minutes=minute_horizon + chance.randint(60, 90),
            gather_bytes_max=chance.choice((1, 4000, 1 << 26)),
            open_files_max=chance.choice((1, 8, 512)),
            checkpoint_interval_ms=chance.choice((300, 3000, 20_000, 20_000, 60_000, 60_000)),
            retired_grace_ms=chance.choice((0, 60_000, 3_600_000)),
            message_log_keep_ms=_draw_age_ms(chance) if aged else _KEEP_MS,
            segments_keep_ms=_draw_age_ms(chance) if aged else _KEEP_MS,
            fact_sync_ms_max=chance.choice((0, 20, 20)),
            disk_free_bytes_min=0,
        ),
        wheel=_draw_wheel(chance, load_ahead_ms, held_min),
        clock=ClockConfig(),
        http=HttpConfig(address=""),
    )
    storage = dataclasses.replace(
        config.storage,
        message_log_file_bytes_max=4096 if aged else chance.choice((1 << 14, 1 << 14, 1 << 20)),
        seals_file_bytes_max=chance.choice((1000, 4000)) if aged else 1 << 20,
        seals_keep_ms=_draw_age_ms(chance) if aged else _KEEP_MS,
        filing_bytes_max=_seldom(chance, (1, 5000), 1 << 27),
        load_step_rows=chance.choice((1, 4, 50)),
        # A name takes some 280: there are collections in nearly every seed, in some all the time.
        subjects_bytes_max=_seldom(chance, (1024, 3000), 30_000),
    )
    return msgspec.structs.replace(config, storage=storage)


def draw_duplicates(chance: random.Random) -> DuplicatesConfig:
    """Draw the window of duplicates, which is the same in all lives of a server."""
    return DuplicatesConfig(
        window_ms=chance.choice((0, 60_000, 600_000, 600_000)),
        messages_max=chance.choice((8, 100, 10_000, 10_000)),
    )


def _draw_age_ms(chance: random.Random) -> int:
    return chance.choice((0, 60_000, 1_800_000, 7_200_000))


def _draw_wheel(chance: random.Random, load_ahead_ms: int, held_min: int) -> WheelConfig:
    wheel = WheelConfig(load_ahead_ms=load_ahead_ms, slot_ms=chance.choice((1, 64)))
    if chance.random() >= _SMALL_WHEEL_CHANCE:
        return wheel
    return dataclasses.replace(
        wheel,
        entries_max=max(chance.choice((8, 40, 100, 200)), held_min),
        lane_entries_min=chance.choice((1, 4, 20)),
        lanes_max=chance.choice((1, 2, 256)),
    )


def _draw_sender(chance: random.Random, held_min: int) -> SenderConfig:
    batch_items = chance.choice((1, 7, 7, 256))
    in_flight_requests_max = chance.choice((1, 8))
    # Not drawn, or what older seeds draw after it would be another story.
    return SenderConfig(
        batch_items=batch_items,
        in_flight_requests_max=in_flight_requests_max,
        queue_items_max=_seldom(chance, (1, 2), 8192),
        entries_max=max(_seldom(chance, (8, 30), 1_000_000), held_min),
        heartbeat_s=3600,
        retry_max_s=10,
        refused_max_s=30,
    )


def _draw_admission(chance: random.Random) -> AdmissionConfig:
    # Of the small intake: less than one full item may have.
    intake = {"pending_bytes_max": 1} if chance.random() < 0.2 else {}
    return AdmissionConfig(horizon_days=HORIZON_DAYS, **intake)


def _seldom(chance: random.Random, small: tuple[int, ...], large: int) -> int:
    """Draw the small bounds in a quarter of the seeds."""
    return chance.choice(small) if chance.random() < 0.25 else large
