"""Delivers due messages to broker groups: batches, retries, and nobody waits for a dead broker."""

from sender.circuit import CircuitState
from sender.config import BrokerGroup, SenderConfig
from sender.dead import OnDead, Refusal
from sender.errors import ItemBytesError, SenderError, SettingError
from sender.gates import GroupGate
from sender.group_status import GroupCounts, GroupState, GroupStatus
from sender.outcomes import Outcome
from sender.routing import LATER, GroupView, LaneRoutes, Routing, Weighted
from sender.sender import Sender, Unsent

__all__ = [
    "LATER",
    "BrokerGroup",
    "CircuitState",
    "GroupCounts",
    "GroupGate",
    "GroupState",
    "GroupStatus",
    "GroupView",
    "ItemBytesError",
    "LaneRoutes",
    "OnDead",
    "Outcome",
    "Refusal",
    "Routing",
    "Sender",
    "SenderConfig",
    "SenderError",
    "SettingError",
    "Unsent",
    "Weighted",
]
