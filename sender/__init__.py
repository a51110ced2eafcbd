"""Delivers due messages to broker groups: batches, retries, and nobody waits for a dead broker."""

from sender.config import BrokerGroup, SenderConfig
from sender.errors import ItemBytesError, SenderError, SettingError
from sender.group_status import GroupCounts, GroupState, GroupStatus
from sender.outcomes import Outcome
from sender.routing import LATER, GroupView, LaneRoutes, LeastLoaded, Routing
from sender.sender import Sender, Unsent

__all__ = [
    "LATER",
    "BrokerGroup",
    "GroupCounts",
    "GroupState",
    "GroupStatus",
    "GroupView",
    "ItemBytesError",
    "LaneRoutes",
    "LeastLoaded",
    "Outcome",
    "Routing",
    "Sender",
    "SenderConfig",
    "SenderError",
    "SettingError",
    "Unsent",
]
