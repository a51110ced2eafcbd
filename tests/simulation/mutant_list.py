"""The rules of the design and, for each, the change of the code that takes it away.

A mutant is a server without one rule. The simulation has to catch it: a rule whose absence nobody
notices is not proven by anything. `mutants.py` tries them; a quick test sees to it that every edit
still fits the code. To add one, append it to MUTANTS with the section of the design that has the
rule, one sentence, and what has to happen for its absence to matter; then let
`make simulate-mutants ONLY="<name>"` say how many seeds it takes, and state some times as many.
"""

from dataclasses import dataclass, replace
from typing import Any

from sender import SenderConfig
from tests.simulation.faults import Action, Kill, PowerCut, Trap, running
from tests.simulation.scenario import PLAIN, Scenario


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces a text that occurs once in a file of the repository."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, and the server without it."""

    name: str
    section: str
    """Of the design: 4 the logs, 5 the wheel, 6 the sender; of its promises where it has none."""
    rule: str
    needs: str
    """The faults that reveal it."""
    edits: tuple[Edit, ...]
    seeds: int = 20
    """Seeds, from 1 on, of which one has to catch it."""
    scenario: Scenario = PLAIN
    """The story in which it matters, where plain worlds tell it too rarely."""
    world: str = "server"
    """Which one it is tried in: the delay "server"'s, the "meta" server's, or the "cluster"'s."""


def rule_of(
    world: str,
    name: str,
    about: str,
    rule: str,
    needs: str,
    *edits: tuple[str, str, str],
    seeds: int = 20,
) -> Mutant:
    """Return the mutant of a rule of the meta server, or of what hangs on it, for another world."""
    return Mutant(
        name=name,
        section=f"8 {about}",
        rule=rule,
        needs=needs,
        edits=tuple(Edit(*edit) for edit in edits),
        seeds=seeds,
        world=world,
    )


_SOON = {
    "point": ("filing", "checkpoint", "fact"),
    "death": PowerCut,
    "fails": False,
    "armed_at_s": 0.0,
    "skip": (0, 1, 3),
}
"""Power is cut soon after a start, often before anything new is appended."""

_UNSYNCED = Scenario(
    name="page cache only",
    ends=({"point": "commit fsync", "death": Kill, "fails": False, "pause_s": 0.1}, _SOON) * 2,
)
_FAILED_FSYNC = Scenario(
    name="failed fsync",
    ends=({"point": "commit fsync", "death": Kill, "fails": True, "pause_s": 0.1}, _SOON) * 2,
)
_NO_SPACE = Scenario(
    name="no space for rows",
    ends=({"point": ("append", "fact", "checkpoint"), "death": (Kill, PowerCut), "fails": False},)
    * 2,
    traps=tuple(
        Trap(action=Action.FULL, kinds={"write"}, when=running("Segment.append"), skip=skip)
        for skip in range(0, 90, 3)
    ),
)
_SPLIT_IN_TRAFFIC = Scenario(
    name="messages during a split",
    traps=(Trap(action=Action.FULL, kinds={"write"}, when=running("SplitJob.step")),) * 200,
    configuration={"gather_bytes_max": 1},
)
_YOUNG_FACTS = Scenario(
    name="facts in the journal only",
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
_RECONFIGURED = Scenario(
    name="reconfigured",
    ends=(
        {
            "point": "await",
            "reconfigured": True,
            "armed_at_s": 0.0,
            "skip": (500, 1500, 3000),
            "pause_s": (1.0, 3600.0),
        },
    )
    * 3,
    configuration={"checkpoint_interval_ms": 120_000},
)
_TORN_TAILS = Scenario(
    name="torn tails",
    ends=(
        {"point": "commit fsync", "death": PowerCut, "fails": False, "pause_s": 0.1},
        {"point": "stop", "at_the_latest_s": 0.0},
    )
    * 2,
)
_POISON = Scenario(name="poison", poison=1.0)
_ENDS_SOON: tuple[dict[str, Any], ...] = (
    {"point": ("fact", "append", "checkpoint"), "death": PowerCut, "fails": False, "pause_s": 0.1},
) * 6
_POISON_AND_LATE_RECORDS = Scenario(
    name="poison, and records that find no space",
    poison=1.0,
    ends=_ENDS_SOON,
    traps=(Trap(action=Action.FULL, kinds={"write"}, when=running("Committing._append_naming")),)
    * 300,
)
_POISON_AND_LATE_FACTS = Scenario(
    name="poison, and facts that find no space",
    poison=1.0,
    ends=_ENDS_SOON,
    traps=(Trap(action=Action.FULL, kinds={"write"}, when=running("FactsJournal.append")),) * 300,
    configuration={"checkpoint_interval_ms": 100},
)
_FULL_APPENDS = Scenario(
    name="no space in appends",
    ends=({"point": "await", "death": Kill},) * 3,
    traps=tuple(
        Trap(
            action=Action.FULL,
            kinds={"write", "create"},
            when=running("MessageLog._write"),
            skip=skip,
        )
        for skip in range(2, 400, 9)
    ),
    # What makes it no wonder to the producers.
    plan={"full": 0.001},
    bounds={"message_log_file_bytes": 4096},
)
_FIRST_SEAL = Scenario(
    name="first seal",
    ends=(
        {"point": "seal", "death": Kill, "fails": False, "armed_at_s": 0.0, "skip": (0, 1, 2, 3)},
        {"point": "await"},
    ),
    configuration={"checkpoint_interval_ms": 120_000},
)
_PAUSES = Scenario(
    name="pauses", ends=({"point": "await", "pause_s": (300.0, 1800.0, 7200.0)},) * 2
)
_NEW_NAMES = Scenario(
    name="new names",
    ends=({"point": "names", "death": Kill, "fails": False, "pause_s": 0.1}, _SOON) * 2,
)
_CLOCK_SET = Scenario(
    name="clock set",
    disturbances={"set_clock": 2, "broker_outage": 3},
    rounds=12,
    # What is paused when the clock is set back does not wait for a broker.
    gating=0.0,
)
_CLOCK_LEAPS = Scenario(name="clock leaps", disturbances={"leap": 1}, rounds=8)
_ROT = Scenario(name="rot", disturbances={"rot": 1}, rounds=12)
_FACTS_ROT = Scenario(
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
    Trap(action=Action.FULL, kinds={"write"}, when=running("FactsJournal.append")),
) * 300
"""Neither a checkpoint nor a fact tells how far the log was durable."""

_TAIL_ROT = Scenario(
    name="rot at the end of the log",
    ends=({"point": ("append", "commit fsync"), "fails": False},) * 2,
    disturbances={"broker_outage": 1},
    rot="message_log",
    traps=_NO_OTHER_WITNESS,
    configuration={"checkpoint_interval_ms": 60_000},
)
_END_LOST = replace(
    _TAIL_ROT, name="the durable end lost, and rot", rot="message_log/durable_end lost"
)
_HEADER_ROT = replace(_TAIL_ROT, name="rot of headers", rot="message_log header")
_SICK_GROUP = Scenario(
    name="a sick group",
    disturbances={"reset": 1},
    rounds=1,
    failing=0.4,
    ends=({"point": "await"},),
    groups=(2, 3, 4),
)

_NO_AGES = Scenario(
    name="nothing kept for its age",
    configuration={
        "retired_grace_ms": 0,
        "message_log_keep_ms": 0,
        "duplicate_window_ms": 0,
        "segments_keep_ms": 0,
    },
    bounds={"message_log_file_bytes": 4096, "seals_file_bytes": 1000, "seals_keep_ms": 0},
)
_NO_AGES_NO_SPACE = replace(
    _NO_SPACE,
    name="nothing kept for its age, no space for rows",
    configuration=_NO_AGES.configuration,
    bounds=_NO_AGES.bounds,
)
_GRACE = replace(
    _NO_AGES,
    name="a grace",
    configuration={**_NO_AGES.configuration, "retired_grace_ms": 600_000},
)
_SMALL_WHEEL = Scenario(
    name="a small wheel",
    hot_ahead_s=(2, 60),
    wheel={"entries_max": 40, "lanes_max": 1},
)
_HOT = Scenario(
    name="a hot subject",
    hot_ahead_s=(2, 600),
    wheel={"entries_max": 100, "lane_entries_min": 1, "lanes_max": 2},
    bounds={"load_step_rows": 1},
    hot_spread_ms=(60_000, 600_000),
)
_HOT_AND_LATE = Scenario(
    name="a hot subject that is late",
    hot_ahead_s=(-60, 0),
    hot_spread_ms=(60_000,),
    wheel={"entries_max": 1000, "lane_entries_min": 1, "lanes_max": 2},
    bounds={
        "sender": SenderConfig(
            batch_items=7,
            in_flight_requests_max=1,
            entries_max=16,
            heartbeat_s=3600,
            retry_max_s=10,
            refused_max_s=30,
        )
    },
)

_HOT_AND_SLOW = replace(
    _HOT_AND_LATE,
    name="a hot subject, brokers that are slow",
    disturbances={"broker_outage": 1},
    hot_ahead_s=(2, 90),
    hot_spread_ms=(5_000, 20_000),
)

_FEW_NAMES = Scenario(name="little room for names", bounds={"subjects_bytes": 1024})
_HOT_FEW_NAMES = replace(
    _HOT,
    name="a hot subject, little room for names",
    bounds={**_HOT.bounds, **_FEW_NAMES.bounds},
)

_LOG = "storage/message_log.py"
_LOG_RECOVERY = "storage/message_log_recovery.py"
_DURABLE_END = "storage/durable_end.py"
_STORE = "storage/store.py"
_CHECKPOINT = "storage/checkpoint.py"
_ENTRIES = "storage/entries.py"
_SCHEDULE = "storage/schedule_log.py"
_LOADING = "storage/loading.py"
_JOURNAL = "storage/dispatch_log.py"
_SEALS = "storage/seals.py"
_RETENTION = "storage/retention.py"
_FILING = "delay_server/filing.py"
_LANES = "delay_server/lanes.py"
_DRAINING = "delay_server/draining.py"
_IDENTITY = "storage/identity.py"
_BATCHES = "storage/batches.py"
_ITEMS = "storage/item_formats.py"
_COMMITTING = "delay_server/committing.py"
_INGEST = "delay_server/ingest.py"
_GROUP = "sender/group.py"
_CONNECTION = "sender/connection.py"

_KEPT = (
    Mutant(
        section="4 message_log",
        name="append without fsync",
        rule="A message is durable before it is acknowledged.",
        edits=(
            Edit(
                _LOG,
                ("        written = file.write_at(end.position, buffers)\n        file.sync()\n"),
                "        written = file.write_at(end.position, buffers)\n",
            ),
        ),
        needs="any end of the server",
    ),
    Mutant(
        section="4 message_log",
        name="answer before the commit",
        rule="A request is answered when its commit is durable, and not before.",
        edits=(
            Edit(
                _INGEST,
                "            kept = await self._commit(intake)\n",
                (
                    "            self._answer(waiting)\n"
                    "            waiting = []\n"
                    "            kept = await self._commit(intake)\n"
                ),
            ),
        ),
        needs="an end of the server between answer and fsync",
    ),
    Mutant(
        section="4 message_log",
        name="new log file without its name",
        rule=(
            "The name of a new message_log file is durable before anything in it is acknowledged."
        ),
        edits=(
            Edit(
                _LOG,
                (
                    "        # Its name must be durable before anything in it is said to be.\n"
                    "        self._disk.sync_directory(MESSAGE_LOG_DIRECTORY)\n"
                ),
                "",
            ),
        ),
        needs="any end of the server",
    ),
    Mutant(
        section="4 message_log",
        name="failed fsync ignored",
        rule="An fsync error is fatal: nothing is acknowledged after it.",
        edits=(
            Edit(
                _LOG,
                ("        written = file.write_at(end.position, buffers)\n        file.sync()\n"),
                (
                    "        written = file.write_at(end.position, buffers)\n"
                    "        try:\n"
                    "            file.sync()\n"
                    "        except FatalDiskError:\n"
                    "            pass\n"
                ),
            ),
        ),
        needs="EIO from an fsync of the message_log",
        scenario=_FAILED_FSYNC,
    ),
    Mutant(
        section="4 message_log",
        name="full disk leaves its garbage",
        rule="What a full disk let through of an append is taken back.",
        edits=(
            Edit(
                _LOG,
                ("        except StorageFullError:\n            self._undo()\n            raise\n"),
                ("        except StorageFullError:\n            raise\n"),
            ),
        ),
        needs="ENOSPC in an append",
        scenario=_FULL_APPENDS,
    ),
    Mutant(
        section="4 durable end",
        name="durable end not written",
        rule="The durable end is written after each fsync of the log.",
        edits=(
            Edit(
                _LOG,
                ("        self.bytes_written += size\n        self._write_durable_end()\n"),
                "        self.bytes_written += size\n",
            ),
        ),
        needs="nothing",
    ),
    Mutant(
        section="4 durable end",
        name="durable end not synced",
        rule="The durable end is itself durable within 20 ms and before the log rests.",
        edits=(
            Edit(
                _DURABLE_END,
                (
                    "        self._file.sync()\n"
                    "        self._slot = 1 - self._slot\n"
                    "        self.synced = True\n"
                ),
                ("        self._slot = 1 - self._slot\n        self.synced = True\n"),
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 durable end",
        name="durable end not honoured",
        rule="A bad batch below the durable end is damage: nothing there is cut.",
        edits=(
            Edit(
                _LOG_RECOVERY,
                "            self._witness = witness\n"
                "            self._bound = max(self._bound, witness.next_sequence)\n",
                "",
            ),
        ),
        needs="a bit flipped in the last file of the message_log",
        seeds=40,
        scenario=_TAIL_ROT,
    ),
    Mutant(
        section="4 durable end",
        name="lost durable end is no witness",
        rule="Where the durable end is lost nothing is cut: the node names it or refuses to start.",
        edits=(
            Edit(
                _LOG_RECOVERY,
                "        if self._witness_damage is not None and size > position:\n",
                "        if False and self._witness_damage is not None and size > position:\n",
            ),
        ),
        needs="the durable end lost, and a bit flipped in the last file of the message_log",
        seeds=20,
        scenario=_END_LOST,
    ),
    Mutant(
        section="4 durable end",
        name="bad tail not cut",
        rule="Beyond the durable end the first bad batch and what follows is cut.",
        edits=(
            Edit(
                _LOG_RECOVERY,
                ("        file.truncate(position)\n        self._position = position\n"),
                "        self._position = position\n",
            ),
        ),
        needs="power cut in an append",
        seeds=40,
        scenario=_TORN_TAILS,
    ),
    Mutant(
        section="4 durable end",
        name="kept bytes not written again",
        rule="Bytes kept beyond the durable end are written again before anything uses them.",
        edits=(
            Edit(
                _LOG_RECOVERY,
                (
                    "            self._changed(batch.file).write_at(batch.position, "
                    "[batch.content])\n"
                ),
                "            self._changed(batch.file)\n",
            ),
        ),
        needs="EIO from an fsync of the message_log, then a start without power cut, then one",
        seeds=40,
        scenario=_FAILED_FSYNC,
    ),
    Mutant(
        section="4 durable end",
        name="kept bytes not synced",
        rule="Bytes kept beyond the durable end are fsynced before anything uses them.",
        edits=(
            Edit(
                _LOG_RECOVERY,
                ("        for file in self._open_files.values():\n            file.sync()\n"),
                "",
            ),
        ),
        needs="SIGKILL in an append, then a power cut soon after the start",
        seeds=40,
        scenario=_UNSYNCED,
    ),
    Mutant(
        section="4 filed minute",
        name="floor follows the clock back",
        rule="The floor of the log never decreases.",
        edits=(
            Edit(
                _COMMITTING,
                "            self._floor_minute = max(self._floor_minute, minute)\n",
                "            self._floor_minute = minute\n",
            ),
        ),
        needs="wall clock set back",
        scenario=_CLOCK_SET,
    ),
    Mutant(
        section="4 filed minute",
        name="filed below the floor",
        rule="A message that is due before the floor is filed in the floor's minute.",
        edits=(
            Edit(
                "storage/rows.py",
                "    return np.maximum(due_ms // MINUTE_MS, floor_minute)\n",
                "    return due_ms // MINUTE_MS\n",
            ),
        ),
        needs="messages due in the past",
    ),
    Mutant(
        section="4 filed minute",
        name="no FLOOR record",
        rule="When nothing arrives and a covered segment waits to be closed a FLOOR is recorded.",
        edits=(
            Edit(
                _COMMITTING,
                ("        if now_ms // MINUTE_MS < wanted_minute:\n            return\n"),
                ("        if now_ms // MINUTE_MS < wanted_minute + 10**9:\n            return\n"),
            ),
        ),
        needs="nothing",
    ),
)

_FILED = (
    Mutant(
        section="4 checkpoint",
        name="files after the checkpoint",
        rule="Segment files are durable before the checkpoint that names them.",
        edits=(
            Edit(
                _STORE,
                (
                    "        self.disk.sync_files(self.files)\n"
                    "        for directory in sorted(changed):\n"
                ),
                "        for directory in sorted(changed):\n",
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 checkpoint",
        name="names after the checkpoint",
        rule="The names of new segment files are durable before the checkpoint that names them.",
        edits=(
            Edit(
                _STORE,
                '            changed |= {"schedule_log", "dispatch_log"}\n',
                "            pass\n",
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 checkpoint",
        name="seals after the checkpoint",
        rule="Seals are durable before the checkpoint drops their segments.",
        edits=(
            Edit(
                _SEALS,
                ("        file.file().sync()\n        if new:\n"),
                "        if new:\n",
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 checkpoint",
        name="checkpoint renamed unsynced",
        rule="The temporary file is durable before it takes the checkpoint's name.",
        edits=(
            Edit(
                _CHECKPOINT,
                ("        file.sync()\n    finally:\n        file.close()\n    disk.rename("),
                ("    finally:\n        file.close()\n    disk.rename("),
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 checkpoint",
        name="checkpoint's name unsynced",
        rule="A checkpoint counts, and what it retires may go, only when its name is durable.",
        edits=(
            Edit(
                _CHECKPOINT,
                (
                    "    disk.rename(_TEMPORARY_PATH, CHECKPOINT_PATH)\n"
                    '    disk.sync_directory("checkpoint")\n'
                ),
                "    disk.rename(_TEMPORARY_PATH, CHECKPOINT_PATH)\n",
            ),
        ),
        needs="power cut, and no grace for retired files",
        seeds=60,
    ),
    Mutant(
        section="4 checkpoint",
        name="no checkpoint before the first seal",
        rule="A checkpoint is always there: the first start writes an empty one.",
        edits=(
            Edit(
                _STORE,
                "            write_checkpoint(disk, uuid, checkpoint)\n        summary = Rec",
                "            pass\n        summary = Rec",
            ),
        ),
        needs="an end of the server between the first seal and the first checkpoint",
        scenario=_FIRST_SEAL,
    ),
    Mutant(
        section="4 checkpoint",
        name="waiting rows counted as filed",
        rule="The checkpoint's sequence is below the oldest row that waits in memory.",
        edits=(
            Edit(
                _SCHEDULE,
                "        return min(waiting) - 1 if waiting else self.last_filed\n",
                "        return self.last_filed\n",
            ),
        ),
        needs="messages that arrive during a split, then an end of the server",
        seeds=40,
        scenario=_NO_SPACE,
    ),
    Mutant(
        section="4 recovery",
        name="all of a segment file counts",
        rule="What lies beyond the checkpoint's length of a segment is cut and derived again.",
        edits=(
            Edit(
                "storage/chained_file.py",
                "        file.truncate(self.length)\n        return True\n",
                "        self.length = file.size()\n        return False\n",
            ),
        ),
        needs="an end of the server between two checkpoints",
    ),
    Mutant(
        section="4 recovery",
        name="nothing replayed",
        rule="The message_log is replayed from the checkpoint's sequence.",
        edits=(
            Edit(
                _STORE,
                "        for batch in message_log.read(sequence + 1):\n",
                "        for batch in message_log.read(message_log.next_sequence):\n",
            ),
        ),
        needs="an end of the server between two checkpoints",
    ),
    Mutant(
        section="4 recovery",
        name="rows replayed again",
        rule="Replay skips the rows that a segment has already.",
        edits=(
            Edit(
                _SCHEDULE,
                (
                    "            block = group.above(segment.last_sequence)\n"
                    "            self.pending -="
                ),
                ("            block = group\n            self.pending -="),
            ),
            Edit(
                _SCHEDULE,
                "        block = block.above(above)\n",
                "",
            ),
        ),
        needs="an end of the server",
        seeds=40,
        scenario=_NO_SPACE,
    ),
    Mutant(
        section="4 recovery",
        name="orphans kept",
        rule="Files that neither checkpoint, seals nor retired list names are deleted.",
        edits=(
            Edit(
                _STORE,
                "            else:\n                self._disk.unlink(path)\n",
                "            else:\n",
            ),
        ),
        needs="an end of the server between two checkpoints",
        seeds=40,
        scenario=_RECONFIGURED,
    ),
    Mutant(
        section="4 recovery",
        name="directories not synced at a start",
        rule=(
            "Names that a dead process left in the page cache are durable before "
            "anything relies on it."
        ),
        edits=(
            Edit(
                _STORE,
                ("                disk.sync_directory(name)\n            recovery ="),
                ("                pass\n            recovery ="),
            ),
        ),
        needs="SIGKILL while names are made, then a power cut",
        seeds=40,
        scenario=_NEW_NAMES,
    ),
    Mutant(
        section="4 recovery",
        name="only the last minutes are sent",
        rule="To be sent is what has no fact in all unsealed segments, however old.",
        edits=(
            Edit(
                _STORE,
                "        schedule.last_filed = checkpoint.sequence\n",
                (
                    "        schedule.last_filed = checkpoint.sequence\n"
                    "        schedule.cursor = (self._now_ms - 120_000, 0)\n"
                ),
            ),
        ),
        needs="an end of the server with a pause of minutes",
        scenario=_PAUSES,
    ),
    Mutant(
        section="4 schedule_log",
        name="split files not synced",
        rule="The finer files of a split are durable before a checkpoint names them.",
        edits=(
            Edit(
                _SCHEDULE,
                (
                    "                if file.length:\n"
                    "                    self._dirty[file.path] = file.file()\n"
                    "        if source.key.span is Span.DAY:\n"
                ),
                ("                pass\n        if source.key.span is Span.DAY:\n"),
            ),
        ),
        needs="power cut",
    ),
    Mutant(
        section="4 schedule_log",
        name="rows not held during a split",
        rule="Rows that arrive for a segment while it is split wait for the finer ones.",
        edits=(
            Edit(
                _SCHEDULE,
                ("        if self._split is not None:\n            self._hold_rows(self._split)\n"),
                "",
            ),
        ),
        needs="messages that arrive during a split",
        seeds=40,
        scenario=_SPLIT_IN_TRAFFIC,
    ),
    Mutant(
        section="4 identity",
        name="incarnation not counted",
        rule="The incarnation is counted up and durable at every start.",
        edits=(
            Edit(
                _IDENTITY,
                "        identity = replace(found, incarnation=found.incarnation + 1)\n",
                "        identity = replace(found, incarnation=found.incarnation)\n",
            ),
        ),
        needs="a start",
    ),
    Mutant(
        section="4 identity",
        name="identity renamed unsynced",
        rule="The identity is durable before it takes its name.",
        edits=(
            Edit(
                _IDENTITY,
                ("        file.sync()\n    finally:\n        file.close()\n    disk.rename("),
                ("    finally:\n        file.close()\n    disk.rename("),
            ),
        ),
        needs="power cut soon after a start",
        seeds=60,
    ),
)

_DELIVERED = (
    Mutant(
        section="4 dispatch_log",
        name="facts not synced",
        rule="A fact counts once it is fsynced in the journal.",
        edits=(
            Edit(
                _JOURNAL,
                ("        file.file().sync()\n        self.next_number += len(facts)\n"),
                "        self.next_number += len(facts)\n",
            ),
        ),
        needs="power cut",
        scenario=_YOUNG_FACTS,
    ),
    Mutant(
        section="4 dispatch_log",
        name="new journal file without its name",
        rule="The name of a new journal file is durable before anything in it counts.",
        edits=(
            Edit(
                _JOURNAL,
                ("        self._disk.sync_directory(JOURNAL_DIRECTORY)\n        if first"),
                "        if first",
            ),
        ),
        needs="power cut",
        scenario=_YOUNG_FACTS,
    ),
    Mutant(
        section="4 dispatch_log",
        name="journal forgotten at a start",
        rule="Facts of the journal above the checkpoint's number count at a start.",
        edits=(
            Edit(
                _STORE,
                ("        for block in facts.facts:\n            store.note_facts"),
                ("        for block in facts.facts[:0]:\n            store.note_facts"),
            ),
        ),
        needs="an end of the server between two checkpoints",
        scenario=_YOUNG_FACTS,
    ),
    Mutant(
        section="4 dispatch_log",
        name="journal numbers used twice",
        rule="Facts are numbered on, in a new file, at every start.",
        edits=(
            Edit(
                _JOURNAL,
                (
                    "                journal.next_number = max(journal.next_number, "
                    "number + len(block))\n"
                ),
                "",
            ),
        ),
        needs="an end of the server between two checkpoints",
        scenario=_YOUNG_FACTS,
    ),
    Mutant(
        section="4 dispatch_log",
        name="fact before the answer",
        rule="A delivery becomes a fact when the broker has answered, not when it is sent.",
        edits=(
            Edit(
                _GROUP,
                (
                    "        self._counts.requests += 1\n"
                    "        remark_bytes = self._config.answer_remark_bytes\n"
                ),
                (
                    "        self._counts.requests += 1\n"
                    "        self._exchange.settled(batch.entries, Outcome.DELIVERED, "
                    "self.name)\n"
                    "        remark_bytes = self._config.answer_remark_bytes\n"
                ),
            ),
        ),
        needs="a broker that refuses or does not answer, and an end of the server",
    ),
    Mutant(
        section="4 seals",
        name="sealed while open",
        rule="Only a segment below the floor is sealed.",
        edits=(
            Edit(
                _SCHEDULE,
                (
                    "            if segment.key.end <= self.floor_minute\n"
                    "            and segment.facts >="
                ),
                "            if segment.facts >=",
            ),
        ),
        needs="messages for a minute whose earlier ones have left",
    ),
    Mutant(
        section="4 seals",
        name="sealed on the number of facts",
        rule="A segment is sealed on distinct facts of its rows, not on the number of its facts.",
        edits=(
            Edit(
                _STORE,
                "        if settled < len(rows):\n",
                "        if segment.facts < len(rows):\n",
            ),
        ),
        needs="a bit flipped in the facts of a segment some of whose messages cannot leave",
        seeds=60,
        scenario=_FACTS_ROT,
    ),
    Mutant(
        section="4 batches",
        name="CRC of columns and blobs unchecked",
        rule="Columns and blob of a batch are checked by their CRC before they are used.",
        edits=(
            Edit(
                _BATCHES,
                ('    if zlib.crc32(data, seed) != crc:\n        return "part fails its CRC"\n'),
                "",
            ),
        ),
        needs="bits flipped in durable bytes",
        scenario=_ROT,
        seeds=60,
    ),
    Mutant(
        section="4 batches",
        name="CRC of headers unchecked",
        rule="The header of a batch is checked by its CRC before it is believed.",
        edits=(
            Edit(
                _BATCHES,
                (
                    "    if zlib.crc32(data[: size - 4], seed) != crc:\n"
                    '        raise _damaged(path, position, "batch header fails its CRC")\n'
                ),
                "",
            ),
        ),
        needs="bits flipped in durable bytes",
        seeds=60,
        scenario=_HEADER_ROT,
    ),
    Mutant(
        section="4 batches",
        name="CRCs not seeded",
        rule="The CRCs of a log are seeded with its uuid and kind.",
        edits=(
            Edit(
                _BATCHES,
                "    return zlib.crc32(log_uuid.bytes + bytes([kind_of_log]))\n",
                "    return 0\n",
            ),
        ),
        needs="nothing",
    ),
    Mutant(
        section="4 segments",
        name="CRC of items unchecked",
        rule="An item is checked by its own CRC just before it is sent.",
        edits=(
            Edit(
                _ITEMS,
                '    suspects: Mask = heads["crc"] != crcs\n',
                "    suspects: Mask = np.zeros(len(crcs), np.bool_)\n",
            ),
        ),
        needs="a bit flipped in the blob of a minute segment",
        scenario=_ROT,
    ),
    Mutant(
        section="5 loading",
        name="no bound to what a load takes",
        rule="From disk come the rows that were there when the loading cursor moved.",
        edits=(
            Edit(
                _LOADING,
                "in self._matching(gone, part.length, part.done):",
                "in self._matching(gone, max(part.length, segment.file.length), part.done):",
            ),
        ),
        needs="messages that arrive during a load",
        seeds=60,
    ),
    Mutant(
        section="5 loading",
        name="cursor moved after the load",
        rule=(
            "The loading cursor moves before the disk part is read: what arrives then "
            "goes straight in."
        ),
        edits=(
            Edit(
                _SCHEDULE,
                "        self.cursor = job.until\n        return True\n",
                "        return True\n",
            ),
            Edit(
                _LOADING,
                "            yield from self._read_all(parts)\n",
                (
                    "            yield from self._read_all(parts)\n"
                    "            if isinstance(self, LoadJob):\n"
                    "                self._schedule.cursor = self.until\n"
                ),
            ),
        ),
        needs="messages that arrive during a load",
        seeds=60,
    ),
    Mutant(
        section="5 loading",
        name="straight in and loaded",
        rule="What goes straight into the wheel is not loaded as well: each enters exactly once.",
        edits=(
            Edit(
                _SCHEDULE,
                "        near = block.minute * MINUTE_MS < self.cursor[0]\n",
                "        near = block.minute * MINUTE_MS < self.cursor[0] + 120_000\n",
            ),
            Edit(
                _SCHEDULE,
                "        if (segment.key.start + 1) * MINUTE_MS > self.cursor[0]:\n",
                "        if segment.key.start < 0:\n",
            ),
        ),
        needs="messages due soon",
    ),
    Mutant(
        section="5 loading",
        name="what has a fact is loaded",
        rule="What is crossed off is not loaded again.",
        edits=(
            Edit(
                _LOADING,
                (
                    "        return self._crossed_off.contains(sequences) | "
                    "contained(sequences, self._given)\n"
                ),
                "        return contained(sequences, self._given)\n",
            ),
        ),
        needs="a start",
    ),
    Mutant(
        section="5 clock",
        name="no look at the clock before sending",
        rule="Just before a batch is sent its due times are compared with the clock once more.",
        edits=(
            Edit(
                _GROUP,
                '        early: Mask = batch.entries["due_ms"] > self._clock.now_ms()\n',
                '        early: Mask = batch.entries["due_ms"] > 2**62\n',
            ),
        ),
        needs="wall clock set back while messages wait for a broker",
        scenario=_CLOCK_SET,
    ),
    Mutant(
        section="5 clock",
        name="any step forward is followed",
        rule="A step forward of more than 60 s holds dispatch until somebody vouches for it.",
        edits=(
            Edit(
                "delay_server/clock_guard.py",
                "        if debt > self._debt_max:\n",
                "        if debt > 10**15:\n",
            ),
        ),
        needs="wall clock set forward by minutes, not synchronised",
        scenario=_CLOCK_LEAPS,
    ),
    Mutant(
        section="5 wheel",
        name="sent 50 ms early",
        rule="A tick takes out what is due by now, and nothing else.",
        edits=(
            Edit(
                "delay_server/dispatch.py",
                "            now_ms = self._pacer.trusted_ms()\n",
                "            now_ms = self._pacer.trusted_ms() + 50\n",
            ),
            Edit(
                _GROUP,
                '        early: Mask = batch.entries["due_ms"] > self._clock.now_ms()\n',
                ('        early: Mask = batch.entries["due_ms"] > self._clock.now_ms() + 50\n'),
            ),
        ),
        needs="nothing",
    ),
    Mutant(
        section="6 sender",
        name="requests lost with their connection",
        rule="What was in flight when a connection ended is sent again.",
        edits=(
            Edit(
                _GROUP,
                (
                    "                self._counts.requests_lost += 1\n"
                    "                self._doubtful(request.batch)\n"
                ),
                "                self._counts.requests_lost += 1\n",
            ),
        ),
        needs="connections that break",
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="requests lost with their time",
        rule="What was not answered in time is sent again.",
        edits=(
            Edit(
                _GROUP,
                (
                    "            self._counts.requests_timed_out += 1\n"
                    "            self._doubtful(request.batch)\n"
                ),
                "            self._counts.requests_timed_out += 1\n",
            ),
        ),
        needs="a broker that does not answer",
        seeds=60,
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="queued for a failed group, forgotten",
        rule="What is queued for a group that is given up goes to another, or waits.",
        edits=(
            Edit(
                _GROUP,
                (
                    "        parcels = self._queue.clear()\n"
                    "        if parcels:\n"
                    "            self._exchange.give_back(parcels)\n"
                ),
                "        self._queue.clear()\n",
            ),
        ),
        needs="a broker that fails while messages are queued for it",
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="an open circuit stays open",
        rule="Every opening of a circuit ends in probes, and a probe that is taken closes it.",
        edits=(
            Edit(
                "sender/circuit.py",
                "    (_OPEN, Event.WAITED): _HALF_OPEN,\n",
                "    (_OPEN, Event.WAITED): _OPEN,\n",
            ),
        ),
        needs="a broker that fails and recovers",
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="refused requests forgotten",
        rule="A request that was refused is tried again elsewhere.",
        edits=(
            Edit(
                _GROUP,
                "            self._exchange.retry(request.batch, avoid=self.number)\n",
                "",
            ),
        ),
        needs="a broker that refuses",
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="listed items taken for delivered",
        rule="Items that an answer lists as failed are tried again.",
        edits=(
            Edit(
                _GROUP,
                "        delivered = codes == ItemCode.SUCCESS\n",
                "        delivered = codes != ItemCode.MESSAGE_DUPLICATE\n",
            ),
        ),
        needs="a broker that takes some items of a request",
    ),
    Mutant(
        section="6 sender",
        name="delivered neighbours sent again",
        rule="Only the items that an answer lists are tried again.",
        edits=(
            Edit(
                _GROUP,
                (
                    "            self._exchange.refused(batch.those(refused), "
                    "codes[refused], avoid=self.number)\n"
                ),
                "            self._exchange.refused(batch, codes, avoid=self.number)\n",
            ),
        ),
        needs="a broker that takes some items of a request",
        seeds=60,
        scenario=_SICK_GROUP,
    ),
    Mutant(
        section="6 sender",
        name="answers taken in turn",
        rule="An answer is that of the request it names; what answers nothing is dropped.",
        edits=(
            Edit(
                _CONNECTION,
                ("            if not frame.is_response or frame.opaque not in self.in_flight:\n"),
                "            if not frame.is_response or not self.in_flight:\n",
            ),
            Edit(
                _CONNECTION,
                "            request = self.in_flight.pop(frame.opaque)\n",
                "            request = self.in_flight.pop(next(iter(self.in_flight)))\n",
            ),
        ),
        needs="a broker that answers twice, late or out of turn",
        seeds=60,
    ),
    Mutant(
        section="6 sender",
        name="damaged items sent",
        rule="An item whose bytes are damaged is not sent, and its neighbours are.",
        edits=(
            Edit(
                _GROUP,
                "            batch = batch.where(~damaged)\n",
                "            batch = batch.where(damaged)\n",
            ),
        ),
        needs="a bit flipped in the blob of a minute segment",
        scenario=_ROT,
    ),
)

_DELETED = (
    Mutant(
        section="4 retention",
        name="deleted without a mark",
        rule="A seal marks a segment as deleted, durably, before its files go.",
        edits=(
            Edit(
                _RETENTION,
                "            sweep.marks = marked_deleted(seals)\n",
                "            pass\n",
            ),
        ),
        needs="ages that pass",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="covered segments deleted unsealed",
        rule="Only files of sealed segments go.",
        edits=(
            Edit(
                _STORE,
                "            [*retired, *self.journal.forget_below(fact_number)],\n",
                (
                    "            [\n"
                    "                *retired,\n"
                    "                *self.journal.forget_below(fact_number),\n"
                    "                *(x.key.path for x in schedule.segments.values() "
                    "if 0 < x.rows <= x.facts),\n"
                    "            ],\n"
                ),
            ),
        ),
        needs="ages that pass",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="log deleted above the checkpoint",
        rule="What a restart would replay stays in the message_log.",
        edits=(
            Edit(
                _RETENTION,
                ("    if file.last_sequence > replayed_sequence:\n        return Hold.REPLAY\n"),
                "",
            ),
        ),
        needs="rows that wait for space, ages that pass, and an end of the server",
        seeds=40,
        scenario=_NO_AGES_NO_SPACE,
    ),
    Mutant(
        section="4 retention",
        name="no grace",
        rule="A retired file stays until its grace is over.",
        edits=(
            Edit(
                _RETENTION,
                "            if missing > 0 or now_ms >= file.since_ms + self._grace_ms:\n",
                "            if missing > 0 or now_ms >= file.since_ms:\n",
            ),
        ),
        needs="ages that pass",
        scenario=_GRACE,
    ),
    Mutant(
        section="4 retention",
        name="deleted before it is listed",
        rule="A file goes only when a durable checkpoint lists it.",
        edits=(
            Edit(
                _RETENTION,
                "for path in paths if path not in known]\n",
                "for path in paths if path not in known]\n        sweep.unlink += paths\n",
            ),
        ),
        needs="ages that pass",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="space seen too late",
        rule="Each commit leaves free what is still to be written for what was accepted.",
        edits=(
            Edit(
                "delay_server/committing.py",
                "        self._budget.require(len(intake), intake.blob_bytes)\n",
                "",
            ),
            Edit(
                "delay_server/disk_budget.py",
                "        self.owed = owed\n",
                "        self.owed = 0 * owed\n",
            ),
        ),
        needs="a disk that messages fill",
        scenario=Scenario(name="small disk", small_disk=1.0),
    ),
    Mutant(
        section="4 retention",
        name="deleted names not synced",
        rule="That a name is gone is durable before a checkpoint lists it no longer.",
        edits=(
            Edit(
                _STORE,
                "        changed = self._unlink()\n",
                "        self._unlink()\n        changed: set[str] = set()\n",
            ),
        ),
        needs="ages that pass, and a power cut",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="newest log file deleted",
        rule="The newest file of the message_log stays, however old.",
        edits=(
            Edit(
                _RETENTION,
                (
                    "        files = self._message_log.files()\n"
                    "        for place, file in enumerate(files[:-1]):\n"
                ),
                (
                    "        files = self._message_log.files()\n"
                    "        newest = files[-1].path if files else ''\n"
                    "        last = LogFile(newest, self._message_log.next_sequence)\n"
                    "        files = (*files, last)\n"
                    "        for place, file in enumerate(files[:-1]):\n"
                ),
            ),
        ),
        needs="ages that pass while nothing arrives",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="begin of the log forgotten",
        rule="The checkpoint says from which record on the message_log is kept.",
        edits=(
            Edit(
                _STORE,
                "            first_sequence=sweep.first_sequence,\n",
                "",
            ),
        ),
        needs="ages that pass, and a start",
        scenario=_NO_AGES,
    ),
    Mutant(
        section="4 retention",
        name="epochs forgotten",
        rule="The checkpoint knows the epochs whose EPOCH_START may be deleted.",
        edits=(
            Edit(
                _STORE,
                "        schedule.epochs = list(checkpoint.epochs)\n",
                "",
            ),
        ),
        needs="ages that pass, and a start",
        scenario=_NO_AGES,
    ),
)

_WAITING = (
    Mutant(
        section="5 memory",
        name="nothing thrown out of a full wheel",
        rule="What exceeds the bound of the wheel is thrown out of it.",
        edits=(
            Edit(
                "delay_server/filing.py",
                "        if excess <= 0 or not len(self._wheel):\n",
                "        if excess <= 10**9 or not len(self._wheel):\n",
            ),
        ),
        needs="more messages due soon than the wheel holds",
        scenario=_SMALL_WHEEL,
    ),
    Mutant(
        section="5 memory",
        name="cursor not set back",
        rule="The loading cursor is set back before what was thrown out of the wheel.",
        edits=(
            Edit(
                _SCHEDULE,
                "        self.cursor = min(self.cursor, key)\n",
                "",
            ),
        ),
        needs="more messages due soon than the wheel holds",
        scenario=_SMALL_WHEEL,
    ),
    Mutant(
        section="5 memory",
        name="jobs go on beyond the cursor",
        rule="A load that is under way gives out nothing beyond a cursor that was set back.",
        edits=(
            Edit(
                _SCHEDULE,
                (
                    "        self.given.add(given)\n"
                    "        for job in self.jobs:\n"
                    "            job.cap(key)\n"
                ),
                "        self.given.add(given)\n",
            ),
        ),
        needs="messages that arrive during a load and fill the wheel",
        seeds=60,
        scenario=_SMALL_WHEEL,
    ),
    Mutant(
        section="5 memory",
        name="what the sender holds is loaded",
        rule="What the sender holds beyond a cursor that was set back is not loaded again.",
        edits=(
            Edit(
                _LOADING,
                (
                    "        return self._crossed_off.contains(sequences) | "
                    "contained(sequences, self._given)\n"
                ),
                "        return self._crossed_off.contains(sequences)\n",
            ),
        ),
        needs="more messages due soon than the wheel holds, brokers that do not answer",
        seeds=40,
        scenario=_SMALL_WHEEL,
    ),
    Mutant(
        section="5 lanes",
        name="dropped without a lane",
        rule="What is popped of a subject is dropped only if its lane comes by it again.",
        edits=(
            Edit(
                _LANES,
                (
                    "        for subject in subjects.tolist():\n"
                    "            self._await_opening(subject, lane)\n"
                ),
                "",
            ),
        ),
        needs="a hot subject",
        scenario=_HOT,
    ),
    Mutant(
        section="5 lanes",
        name="dropped after the lane has closed",
        rule="From the moment in which a lane is closed its rows go into the wheel again.",
        edits=(
            Edit(
                _DRAINING,
                ("            closed = self._note_closed(lane, job)\n        done = job is None\n"),
                "            closed = False\n        done = job is None\n",
            ),
            Edit(
                _DRAINING,
                (
                    "                closed = closed or self._note_closed(lane, job)\n"
                    "                await self._filing.take([entries])\n"
                ),
                (
                    "                await self._filing.take([entries])\n"
                    "                closed = closed or self._note_closed(lane, job)\n"
                ),
            ),
        ),
        needs="a hot subject with messages that are due later",
        seeds=40,
        scenario=_HOT,
    ),
    Mutant(
        section="5 lanes",
        name="closed while the wheel has some",
        rule="A lane is closed only when the wheel has nothing of its subject.",
        edits=(
            Edit(
                _DRAINING,
                "            if lane in self._lanes.leaving or self._in_wheel(lane):\n",
                "            if lane in self._lanes.leaving:\n",
            ),
        ),
        needs="a hot subject with messages that are due later",
        seeds=40,
        scenario=_HOT_AND_SLOW,
    ),
    Mutant(
        section="5 names",
        name="the pile's numbers are given again",
        rule="The number of a subject is given again only when nothing holds it.",
        edits=(
            Edit(
                _SCHEDULE,
                "for block in (*self._near, *self._pile, *self._held, *splitting):",
                "for block in (*self._near, *self._held, *splitting):",
            ),
        ),
        needs="many subjects",
        scenario=_FEW_NAMES,
    ),
    Mutant(
        section="5 names",
        name="numbers given meanwhile are swept",
        rule="A collection leaves the numbers alone that were given since it began.",
        edits=(
            Edit(
                _ENTRIES,
                "for number in part[~self._used[part]].tolist():",
                "for number in part.tolist():",
            ),
        ),
        needs="many subjects",
        scenario=_FEW_NAMES,
    ),
    Mutant(
        section="5 names",
        name="the wheel's numbers are given again",
        rule="The number of a subject is given again only when the wheel has none of it.",
        edits=(
            Edit(
                _FILING,
                "            part[:] = self._wheel.holds_subjects(first, len(part))\n",
                "            part[:] = False\n",
            ),
        ),
        needs="a hot subject among many subjects",
        scenario=_HOT_FEW_NAMES,
        seeds=60,
    ),
    Mutant(
        section="5 lanes",
        name="arrivals pass their lane",
        rule="What arrives of a subject with a lane waits on disk, and its lane comes by it.",
        edits=(
            Edit(
                _SCHEDULE,
                "        if self.lanes:\n            waits",
                "        if self.lanes and self.lanes == {}:\n            waits",
            ),
        ),
        needs="messages that arrive of a hot subject while it waits",
        seeds=60,
        scenario=_HOT_AND_LATE,
    ),
    Mutant(
        section="5 lanes",
        name="what the sender holds is drained",
        rule="A lane does not take what the sender held when it was opened.",
        edits=(
            Edit(
                _SCHEDULE,
                "        self.lanes.subjects.add(subjects)\n        self.given.add(given)\n",
                "        self.lanes.subjects.add(subjects)\n",
            ),
        ),
        needs="a hot subject",
        scenario=_HOT,
    ),
)

_DEAD = (
    Mutant(
        section="4 dead letters",
        name="fact before record",
        rule="The fact that a message is dead comes when its record is durable, and not before.",
        edits=(
            Edit(
                "delay_server/server.py",
                "        self.burying.give_up(entries, refusals, tries)\n",
                "        now_ms = self.runtime.clock.now_ms()\n"
                '        self.crossing_off.cross_off(entries, now_ms, "", Outcome.DEAD)\n'
                "        self.burying.give_up(entries, refusals, tries)\n",
            ),
        ),
        needs="a crash between the fact and its record",
        seeds=60,
        scenario=_POISON_AND_LATE_RECORDS,
    ),
    Mutant(
        section="4 dead letters",
        name="move without fact",
        rule="A MOVE record makes a fact about the row that it names.",
        edits=(
            Edit(
                _SCHEDULE,
                "        facts = facts_of_records(kind, columns, append_ms)\n",
                "        facts = facts_of_records(kind, columns, append_ms)\n"
                "        facts = facts if kind is not RecordKind.MOVE else facts.slice(0, 0)\n"
                "        if not len(facts):\n"
                "            return entries, facts\n",
            ),
        ),
        needs="a requeue",
        scenario=_POISON,
    ),
    Mutant(
        section="4 dead letters",
        name="dead row loaded",
        rule="A row of a dead segment is never loaded.",
        edits=(
            Edit(
                _SCHEDULE,
                "        if kind is RecordKind.MOVE:\n            entries = self.file(",
                # Some of them: where all are, each that dies again does so for ever.
                "        dies = kind is RecordKind.DEAD and base_sequence % 4 == 0\n"
                "        if kind is RecordKind.MOVE or dies:\n"
                "            entries = self.file(",
            ),
        ),
        needs="messages that brokers refuse for good",
        scenario=_POISON,
    ),
    Mutant(
        section="4 dead letters",
        name="the checkpoint passes a record without its fact",
        rule="No checkpoint covers a record whose fact is not durable.",
        edits=(Edit(_SCHEDULE, "        waiting += list(self._untold.values())\n", ""),),
        needs="a crash between a checkpoint and a fact",
        seeds=60,
        scenario=_POISON_AND_LATE_FACTS,
    ),
    Mutant(
        section="4 dead letters",
        name="cut off facts are not told at a start",
        rule="A start tells the facts of records that a crash cut off, before anything is sent.",
        edits=(
            Edit(
                "delay_server/server.py",
                "        if untold is not None:\n",
                "        if untold is not None and not len(untold):\n",
            ),
        ),
        needs="a crash between a record and its fact",
        seeds=60,
        scenario=_POISON_AND_LATE_FACTS,
    ),
    Mutant(
        section="4 dead letters",
        name="facts of dead letters count for minutes",
        rule="A fact about a row of a dead segment is none about a minute of its day.",
        edits=(
            Edit(
                "storage/spans.py",
                "    return DEAD_MINUTES_FROM + key.start // Span.DEAD.minutes\n",
                "    return key.start\n",
            ),
        ),
        needs="a requeue or a drop",
        scenario=_POISON,
    ),
)

_OPERATED = Scenario(
    name="an operator who is always there",
    gating=1.0,
    hot_ahead_s=(10, 2400),
    disturbances={"broker_outage": 1},
    rounds=6,
)
_CALM_OPERATED = replace(
    _OPERATED, name="an operator, brokers that work", disturbances={"drift": 1}
)
_GATED = (
    Mutant(
        section="6 controls",
        name="a pause is not kept",
        rule="A change is durable before it is answered.",
        edits=(
            Edit(
                "delay_server/controls.py",
                "        write_controls(self._disk, self._log_uuid, controls)\n",
                "",
            ),
        ),
        needs="an end of the server",
        scenario=_OPERATED,
    ),
    Mutant(
        section="6 controls",
        name="a pause is not synced",
        rule="A change is durable, its name too, before it is answered.",
        edits=(
            Edit(
                "storage/controls_file.py",
                ('    disk.rename(_TEMPORARY_PATH, CONTROLS_PATH)\n    disk.sync_directory("")\n'),
                "    disk.rename(_TEMPORARY_PATH, CONTROLS_PATH)\n",
            ),
        ),
        needs="a power cut",
        seeds=60,
        scenario=_OPERATED,
    ),
    Mutant(
        section="6 controls",
        name="a limit lets all pass",
        rule="What is limited leaves at its rate.",
        edits=(
            Edit(
                "delay_server/metering.py",
                "        left = bucket.tokens(now)\n",
                "        left = max(bucket.tokens(now), 10**6)\n",
            ),
            Edit(
                "delay_server/metering.py",
                "        rooms = {lane: share - queued(lane) for lane in bucket.lanes}\n",
                "        rooms = dict.fromkeys(bucket.lanes, 10**6)\n",
            ),
        ),
        needs="more due of a limited subject than its rate",
        seeds=60,
        scenario=_CALM_OPERATED,
    ),
    Mutant(
        section="6 controls",
        name="a resumed subject is not fetched",
        rule="What has waited on disk comes back when it may leave.",
        edits=(
            Edit(
                "delay_server/lanes.py",
                "        if lane != self.base:\n            self.unopened",
                "        if lane > self.base:\n            self.unopened",
            ),
        ),
        needs="a pause that ends",
        scenario=_OPERATED,
    ),
)

_RESTED = Scenario(name="an operator who drains", resting=1.0)
_DRAINED = (
    Mutant(
        section="6 controls",
        name="a drain is not kept",
        rule="A drain survives a crash.",
        edits=(Edit("delay_server/controls.py", "            mark_drained(self._disk)\n", ""),),
        needs="a crash while the node is at rest",
        seeds=60,
        scenario=_RESTED,
    ),
    Mutant(
        section="6 controls",
        name="a drain is not synced",
        rule="A drain survives a power cut.",
        edits=(
            Edit(
                "storage/controls_file.py",
                "        disk.open(DRAINED_PATH, create=True).close()\n"
                '    disk.sync_directory("")\n',
                "        disk.open(DRAINED_PATH, create=True).close()\n",
            ),
        ),
        needs="a power cut while the node is at rest",
        seeds=60,
        scenario=_RESTED,
    ),
    Mutant(
        section="6 controls",
        name="started at rest, it sends",
        rule="A node that a start finds drained sends nothing.",
        edits=(
            Edit(
                "delay_server/server.py",
                "            )\n            self.follow_planned_stop()\n",
                "            )\n",
            ),
        ),
        needs="a crash while the node is at rest, and messages that are due then",
        seeds=60,
        scenario=_RESTED,
    ),
    Mutant(
        section="6 controls",
        name="at rest it takes messages",
        rule="A node that is drained takes no messages.",
        edits=(
            Edit(
                "delay_server/server.py",
                "        elif self.planned_stop.is_closed and self.registration is None:\n",
                "        elif False:\n",
            ),
        ),
        needs="a drain",
        scenario=_RESTED,
    ),
    Mutant(
        section="6 controls",
        name="drained for ever",
        rule="An orderly stop ends a drain.",
        edits=(
            Edit(
                "delay_server/operator.py",
                "            await self._executor.run(CONTROLS_LANE, self._store.end_drain)\n",
                "",
            ),
        ),
        needs="an orderly stop while the node is at rest",
        seeds=60,
        scenario=_RESTED,
    ),
    Mutant(
        section="6 controls",
        name="an undone drain is kept",
        rule="What undoes a drain is durable.",
        edits=(
            Edit(
                "delay_server/controls.py",
                "        unmark_drained(self._disk)\n",
                "",
            ),
        ),
        needs="an end of the server after a drain was undone",
        scenario=_RESTED,
    ),
)

_EXPLAINING = "delay_server/explaining.py"
_REASONS = "delay_server/reasons.py"
_GROUPS = Scenario(
    name="groups that fail alone",
    groups=(2, 3),
    long_outages=10,
    disturbances={"drift": 1},
    gating=0.0,
    hot_ahead_s=(10, 600),
    bounds={
        "sender": SenderConfig(
            batch_items=1,
            in_flight_requests_max=1,
            heartbeat_s=3600,
            retry_max_s=10,
            refused_max_s=30,
        )
    },
)
_ONE_GROUP = Scenario(
    name="one group, often away for long",
    groups=(1,),
    long_outages=10,
    disturbances={"drift": 1},
    gating=0.0,
)
_STATED = (
    Mutant(
        section="6 sender",
        name="a dead group keeps its queue",
        rule="What is queued for a group that is given up does not wait for it to come back.",
        edits=(
            Edit(
                _GROUP,
                "        parcels = self._queue.clear()\n        if parcels:\n",
                "        parcels = self._queue.clear() if self._stopping else []\n"
                "        if parcels:\n",
            ),
        ),
        needs="a group that is away for long while others do their work",
        seeds=60,
        scenario=_GROUPS,
    ),
    Mutant(
        section="6 controls",
        name="a paused subject leaves",
        rule="Nothing of a subject that is paused leaves.",
        edits=(
            Edit(
                "delay_server/gates.py",
                "np.where(kinds == _Kind.PAUSED, NO_ROUTE, routes)",
                "np.where(kinds > _Kind.LIMITED, NO_ROUTE, routes)",
            ),
        ),
        needs="a pause",
        scenario=_OPERATED,
    ),
    Mutant(
        section="6 controls",
        name="a paused group is sent to",
        rule="Nothing is queued for a broker group that is paused.",
        edits=(
            Edit(
                _GROUP,
                "            and not self._gate.paused\n",
                "",
            ),
        ),
        needs="a group that is paused",
        scenario=_CALM_OPERATED,
    ),
    Mutant(
        section="6 reasons",
        name="what is parked is said to wait",
        rule="What is due of a paused subject is said to be paused, wherever it is.",
        edits=(
            Edit(
                _REASONS,
                "    if due_ms > around.now_ms and place in {Place.PARKED, Place.ELSEWHERE}:\n",
                "    if due_ms > around.now_ms or place is Place.PARKED:\n",
            ),
        ),
        needs="a pause, and a question",
        scenario=_OPERATED,
    ),
    Mutant(
        section="6 reasons",
        name="the count forgets the meters",
        rule="What waits for the rate of its limit is counted as such.",
        edits=(
            Edit(
                _EXPLAINING,
                "        found[reason] += server.meters.count_of(lane)\n",
                "",
            ),
        ),
        needs="more due of a limited subject than its rate, and a question",
        seeds=60,
        scenario=_CALM_OPERATED,
    ),
    Mutant(
        section="6 reasons",
        name="the count forgets dead letters",
        rule="Dead letters are counted among what was not delivered.",
        edits=(
            Edit(
                _EXPLAINING,
                "    found[Reason.DEAD] = server.dead_letters.pending\n",
                "",
            ),
        ),
        needs="messages that brokers refuse for good",
        scenario=_POISON,
    ),
    Mutant(
        section="6 reasons",
        name="a dead letter seems delivered",
        rule="A message that was given up is not said to be delivered.",
        edits=(
            Edit(
                _EXPLAINING,
                "        of_letter = Reason.DEAD if letter.is_pending else None\n",
                "        of_letter = None\n",
            ),
        ),
        needs="messages that brokers refuse for good",
        scenario=_POISON,
    ),
    Mutant(
        section="6 reasons",
        name="every group seems to be there",
        rule="Nothing is said to wait for its turn while no group can be reached.",
        edits=(
            Edit(
                _EXPLAINING,
                "is_up=group.state is GroupState.UP and group.circuit is CircuitState.CLOSED,",
                "is_up=True,",
            ),
        ),
        needs="an outage of all groups",
        seeds=60,
        scenario=_ONE_GROUP,
    ),
    Mutant(
        section="6 reasons",
        name="all that is on disk seems due",
        rule="What waits for its time is not counted with what is on its way from disk.",
        edits=(
            Edit(
                _EXPLAINING,
                (
                    "        late = max(late, schedule.pending_in_minutes(now_ms) "
                    "- elsewhere - of_minute)\n"
                ),
                "        late = schedule.pending\n",
            ),
        ),
        needs="a question while something is loaded",
        seeds=60,
    ),
)

MUTANTS = (
    *_KEPT,
    *_FILED,
    *_DELETED,
    *_DELIVERED,
    *_WAITING,
    *_DEAD,
    *_GATED,
    *_DRAINED,
    *_STATED,
)
"""In the order of the design."""
