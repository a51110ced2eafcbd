"""The stories in which mutants are tried that plain worlds would tell too rarely.

In each of them the tree without any edit has to come out clean.
"""

from dataclasses import replace
from typing import Any

from sender.settings.config import SenderConfig
from tests.simulation.faults import Action, Kill, PowerCut, Trap, running
from tests.simulation.scenario import Scenario

_SOON = {
    "point": ("filing", "checkpoint", "fact"),
    "death": PowerCut,
    "fails": False,
    "armed_at_s": 0.0,
    "skip": (0, 1, 3),
}
"""Power is cut soon after a start, often before anything new is appended."""

UNSYNCED = Scenario(
    name="page cache only",
    ends=({"point": "commit fsync", "death": Kill, "fails": False, "pause_s": 0.1}, _SOON) * 2,
)
FAILED_FSYNC = Scenario(
    name="failed fsync",
    ends=({"point": "commit fsync", "death": Kill, "fails": True, "pause_s": 0.1}, _SOON) * 2,
)
SPLIT_IN_TRAFFIC = Scenario(
    name="messages during a split",
    traps=(Trap(action=Action.FULL, kinds={"write"}, when=running("SplitJob.step")),) * 200,
    configuration={"gather_bytes_max": 1},
)
YOUNG_FACTS = Scenario(
    name="facts in the log only",
    ends=(
        {
            "point": ("send", "fact", "append"),
            "death": PowerCut,
            "fails": False,
            "pause_s": 0.1,
        },
        {
            "point": "fact",
            "death": PowerCut,
            "fails": False,
            "armed_at_s": 0.0,
            "skip": (4, 8, 16),
        },
    )
    * 2,
    configuration={"checkpoint_interval_ms": 120_000},
)
TORN_TAILS = Scenario(
    name="torn tails",
    ends=(
        {"point": "commit fsync", "death": PowerCut, "fails": False, "pause_s": 0.1},
        {"point": "stop", "at_the_latest_s": 0.0},
    )
    * 2,
)
POISON = Scenario(name="poison", poison=1.0)
_ENDS_SOON: tuple[dict[str, Any], ...] = (
    {"point": ("fact", "append", "checkpoint"), "death": PowerCut, "fails": False, "pause_s": 0.1},
) * 6
POISON_AND_LATE_RECORDS = Scenario(
    name="poison, and records that find no space",
    poison=1.0,
    ends=_ENDS_SOON,
    traps=(Trap(action=Action.FULL, kinds={"write"}, when=running("Committer._append_naming")),)
    * 300,
)
FULL_APPENDS = Scenario(
    name="no space in appends",
    ends=({"point": "await", "death": Kill},) * 3,
    traps=tuple(
        Trap(
            action=Action.FULL,
            kinds={"write", "create"},
            when=running("LogTail.write"),
            skip=skip,
        )
        for skip in range(2, 400, 9)
    ),
    # What makes it no wonder to the producers.
    plan={"full": 0.001},
    configuration={"message_log_file_bytes_max": 4096},
)
FIRST_SEAL = Scenario(
    name="first seal",
    ends=(
        {"point": "seal", "death": Kill, "fails": False, "armed_at_s": 0.0, "skip": (0, 1, 2, 3)},
        {"point": "await"},
    ),
    configuration={"checkpoint_interval_ms": 120_000},
)
PAUSES = Scenario(name="pauses", ends=({"point": "await", "pause_s": (300.0, 1800.0, 7200.0)},) * 2)
CLOCK_SET = Scenario(
    name="clock set",
    disturbances={"set_clock": 2, "broker_outage": 3},
    rounds=12,
    # What is paused when the clock is set back does not wait for a broker.
    gating=0.0,
)
CLOCK_LEAPS = Scenario(name="clock leaps", disturbances={"leap": 1}, rounds=8)
ROT = Scenario(name="rot", disturbances={"rot": 1}, rounds=12)
FACTS_ROT = Scenario(
    name="rot of facts",
    ends=({"point": "await"},) * 3,
    failing=0.2,
    rot="facts",
    configuration={"checkpoint_interval_ms": 500},
    groups=(2, 3, 4),
    long_outages=1,
)
_NO_OTHER_WITNESS = (
    Trap(action=Action.FULL, kinds={"create"}, when=running("CheckpointWork.write")),
) * 300
"""No checkpoint tells how far the log was durable."""

TAIL_ROT = Scenario(
    name="rot at the end of the log",
    ends=({"point": ("append", "commit fsync"), "fails": False},) * 2,
    disturbances={"broker_outage": 1},
    rot="message_log",
    traps=_NO_OTHER_WITNESS,
    configuration={"checkpoint_interval_ms": 60_000},
)
END_LOST = replace(
    TAIL_ROT, name="the durable end lost, and rot", rot="message_log/durable_end lost"
)
HEADER_ROT = replace(TAIL_ROT, name="rot of headers", rot="message_log header")
SICK_GROUP = Scenario(
    name="a sick group",
    disturbances={"reset": 1},
    rounds=1,
    failing=0.4,
    ends=({"point": "await"},),
    groups=(2, 3, 4),
)
NO_AGES = Scenario(
    name="nothing kept for its age",
    configuration={
        "retired_grace_ms": 0,
        "message_log_keep_ms": 0,
        "segments_keep_ms": 0,
        "seals_keep_ms": 0,
        "message_log_file_bytes_max": 4096,
        "seals_file_bytes_max": 1000,
    },
)
GRACE = replace(
    NO_AGES,
    name="a grace",
    configuration={**NO_AGES.configuration, "retired_grace_ms": 600_000},
)
SMALL_WHEEL = Scenario(
    name="a small wheel",
    hot_ahead_s=(2, 60),
    wheel={"entries_max": 40, "lanes_max": 1},
)
HOT = Scenario(
    name="a hot subject",
    hot_ahead_s=(2, 600),
    wheel={"entries_max": 100, "lane_entries_min": 1, "lanes_max": 2},
    configuration={"load_step_rows": 1},
    hot_spread_ms=(60_000, 600_000),
)
HOT_AND_LATE = Scenario(
    name="a hot subject that is late",
    hot_ahead_s=(-60, 0),
    hot_spread_ms=(60_000,),
    wheel={"entries_max": 1000, "lane_entries_min": 1, "lanes_max": 2},
    sender=SenderConfig(
        batch_items=7,
        in_flight_requests_max=1,
        entries_max=16,
        heartbeat_s=3600,
        retry_max_s=10,
        refused_max_s=30,
    ),
)
HOT_AND_SLOW = replace(
    HOT_AND_LATE,
    name="a hot subject, brokers that are slow",
    disturbances={"broker_outage": 1},
    hot_ahead_s=(2, 90),
    hot_spread_ms=(5_000, 20_000),
)
FEW_NAMES = Scenario(name="little room for names", configuration={"subjects_bytes_max": 1024})
HOT_FEW_NAMES = replace(
    HOT,
    name="a hot subject, little room for names",
    configuration={**HOT.configuration, **FEW_NAMES.configuration},
)
OPERATED = Scenario(
    name="an operator who is always there",
    gating=1.0,
    hot_ahead_s=(10, 2400),
    disturbances={"broker_outage": 1},
    rounds=6,
)
CALM_OPERATED = replace(OPERATED, name="an operator, brokers that work", disturbances={"drift": 1})
GROUPS = Scenario(
    name="groups that fail alone",
    groups=(2, 3),
    long_outages=10,
    disturbances={"drift": 1},
    gating=0.0,
    hot_ahead_s=(10, 600),
    sender=SenderConfig(
        batch_items=1,
        in_flight_requests_max=1,
        heartbeat_s=3600,
        retry_max_s=10,
        refused_max_s=30,
    ),
)
SMALL_DISK = Scenario(name="small disk", small_disk=1.0)
RECEIVERS = Scenario(name="receivers", receivers=1.0)
DEADLY = Scenario(name="messages that end their receivers", receivers=1.0, deadly=1.0, gating=0.0)
RECEIVERS_IN_CRASHES = Scenario(
    name="crashes when something was settled",
    receivers=1.0,
    ends=({"point": "send", "death": PowerCut, "fails": False, "pause_s": 0.1},) * 8,
)
CHANGES = Scenario(name="a client that cancels and moves", changing=1.0)
CHANGES_AND_RECEIVERS = Scenario(
    name="a client that changes what receivers put off", changing=1.0, receivers=1.0
)
