"""The rules of the design and, for each, the edit that takes it away.

A mutant is a server without one rule. The simulation has to catch it: a rule whose absence nobody
notices is not proven by anything. `mutants.py` tries them; a quick test sees to it that every edit
still fits the code. To add one, put it below its rule, with the edit (`mutation.py`), the scenario
if plain worlds tell its story too rarely, and `seed=None`; then
`python -m tests.simulation.mutants --record "<name>"` finds a seed and writes it down here.
"""

from dataclasses import dataclass, replace

from tests.simulation import mutant_scenarios as told
from tests.simulation.mutation import Edit, after, before, drop, swap
from tests.simulation.scenario import PLAIN, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, and the server without it."""

    edits: tuple[Edit, ...] = ()
    seed: int | None = None
    """The last that is known to catch it; None if none is known, so that it may survive."""
    test: str = ""
    """A test of tests/ that fails without the rule, in place of seeds that seldom meet it."""
    scenario: Scenario = PLAIN
    """The story in which it matters, where plain worlds tell it too rarely."""
    name: str = ""
    section: str = ""
    """Of the design: 4 the logs, 5 the wheel, 6 the sender, 7 replication, 8 the meta server."""
    world: str = "server"
    """Which one it is tried in: the delay "server"'s, the "meta" server's, the "cluster"'s, the
    "schedule" of the core of replication, or the story of a "group"."""


def mutant(
    *edits: Edit, seed: int | None = None, test: str = "", scenario: Scenario = PLAIN
) -> Mutant:
    """Return what edits make of the code, for its place in the tables below."""
    return Mutant(edits=edits, seed=seed, test=test, scenario=scenario)


_COMMIT = "await self._executor.run(STORE_WORKER, self._store.commit, changes)"

_MODEL = (
    "storage/schedule/test_loading.py::"
    "test_whatever_interleaves_every_row_is_in_memory_at_most_once_and_leaves[0 to 19]"
)
"""A small server around the schedule_log, of which each row is followed."""
_MODEL_EIO = (
    "storage/schedule/test_loading.py::"
    "test_what_the_disk_cannot_read_is_handed_out_once_at_the_latest_after_the_next_start[0 to 19]"
)
"""The same on a disk that cannot be read now and then."""

_FAILOVER = "failover/test_group.py::"
_DAMAGE = "failover/test_damage.py::"
_FOLLOWING = "failover/test_following.py::"
_RECEIVERS = "delay_server/receiving/test_receivers.py::"
_CHANGES = "delay_server/changing/"
_DUPLICATES = "delay_server/accepting/test_duplicates.py::"
_COPIES = "delay_server/receiving/test_copies.py::"
_TAKING = "delay_server/test_target_groups.py::"
_GROUP_CHANGES = "meta_server/wire/test_group_changes.py::"
_RECORD_FILE = "meta_server/known/test_record_file.py"
_REGISTRY = "meta_server/known/test_registry.py"
_STORE = "meta_server/sql/test_store.py::"
_SET_BACK = "meta_server/known/test_set_back.py"
_FAILOVER_ROLES = "failover/test_roles.py::"

SERVER = {
    "4 message_log": {
        # A message is durable before it is acknowledged.
        "append without fsync": mutant(drop("LogTail.sync", "file.sync()"), seed=1),
        # A request is answered when its commit is durable, and not before.
        "answer before the commit": mutant(
            before(
                "Ingest._take",
                "self._under_way.append(gathered)",
                "self._answer(gathered.waiting); gathered.waiting = []",
            ),
            seed=2,
        ),
        # The name of a new message_log file is durable before anything in it is acknowledged.
        "new log file without its name": mutant(
            drop("LogTail._make_file", "self._disk.sync_directory(...)"), seed=2
        ),
        # An fsync error is fatal: nothing is acknowledged after it.
        "failed fsync ignored": mutant(
            swap(
                "LogTail.sync",
                "file.sync()",
                "try:\n    file.sync()\nexcept Exception:\n    pass",
            ),
            scenario=told.FAILED_FSYNC,
            seed=1,
        ),
        # What a full disk let through of an append is taken back.
        "full disk leaves its garbage": mutant(
            drop("MessageLog._appending", "self._tail.undo(self._end)"),
            scenario=told.FULL_APPENDS,
            seed=2,
        ),
    },
    "7 copies of a log": {
        # The durable end is lowered before anything of the log is cut.
        "cut below the durable end": mutant(
            drop("TailCut.cut", "durable_end.write(left)"),
            drop("TailCut.cut", "durable_end.sync()"),
            test="storage/logs/test_raw_batches.py::"
            "test_a_crash_in_a_cut_leaves_whole_batches_that_can_be_cut_again[2]",
        ),
        # And that is durable before anything is cut.
        "cut before the lower end is durable": mutant(
            drop("TailCut.cut", "durable_end.sync()"),
            test="storage/logs/test_raw_batches.py::"
            "test_a_crash_in_a_cut_leaves_whole_batches_that_can_be_cut_again[2]",
        ),
        # Files are cut from the last to the first, and each is gone before the next one goes.
        "names cut at once": mutant(
            drop("TailCut.cut", "self._disk.sync_directory(self._directory)"),
            test="storage/logs/test_raw_batches.py::"
            "test_a_crash_in_a_cut_leaves_whole_batches_that_can_be_cut_again[2]",
        ),
        # What is cut off a file is gone before anything else is written.
        "cut that comes back": mutant(
            drop("TailCut.cut", "file.sync()"),
            test="storage/logs/test_raw_batches.py::"
            "test_a_crash_in_a_cut_leaves_whole_batches_that_can_be_cut_again[0]",
        ),
        # The index forgets what was cut.
        "index of what was cut": mutant(
            drop("MessageLog.cut_to", "self._index.forget(left.file_sequence)"),
            test="storage/logs/test_raw_batches.py::"
            "test_what_is_cut_is_gone_and_another_end_takes_its_place",
        ),
        # A place is believed when more follows it than fits into a message.
        "image of a batch is believed": mutant(
            swap("SparseIndex.place_of", "place.position - start >= BELIEVED_BYTES", "True"),
            test="storage/logs/test_sparse_index.py::"
            "test_images_of_what_is_looked_for_are_not_taken_for_it",
        ),
        # A replica seals nothing before it has applied what was applied before its start.
        "replica seals too early": mutant(
            swap("Store._candidates", "schedule.last_filed + 1 >= self._open_end", "True"),
            test="storage/node/test_store.py::"
            "test_nothing_is_sealed_before_a_start_has_applied_the_tail_of_the_log",
        ),
        # A copied batch was written behind the one that is the last here.
        "copy of another chain": mutant(
            swap("_fault_of_copy", "header.previous_crc != crc", "False"),
            test="storage/logs/test_raw_batches.py::"
            "test_what_does_not_go_on_from_the_end_is_refused_and_nothing_is_written"
            "[other chain-another batch]",
        ),
        # Only EPOCH_START raises the epoch of a copy, and nothing lowers it.
        "copy of an older epoch": mutant(
            swap("_fault_of_copy", "header.epoch < epoch or ...", "False"),
            test="storage/logs/test_raw_batches.py::"
            "test_what_does_not_go_on_from_the_end_is_refused_and_nothing_is_written"
            "[older epoch-epoch 1 after epoch 3]",
        ),
        # Every byte that is sent to another node is checked.
        "damage is copied": mutant(
            swap("read_batches_raw", "fault is not None", "False"),
            test="storage/logs/test_raw_batches.py::"
            "test_a_byte_that_is_not_as_it_was_written_is_not_sent",
        ),
    },
    "7 commit point": {
        # Nothing that is durable here is handed on before it is committed.
        "handed on before it is committed": mutant(
            swap(
                "CommitQueue.hand_on",
                "entry.end > committed",
                "False",
            ),
            test="delay_server/test_node.py::"
            "test_nothing_goes_beyond_the_commit_point_and_all_of_it_goes_on_in_order",
        ),
        # What is not durable here is not committed here.
        "committed beyond what is durable": mutant(
            swap("CommitPoint.commit_to", "min(sequence, self.durable)", "sequence"),
            test="replication/core/test_commit_point.py::"
            "test_the_committed_part_is_durable_and_never_taken_back",
        ),
        # Alone, what is durable is committed in the same step.
        "alone, and nothing is committed": mutant(
            drop("CommitPoint.durable_to", "self.committed = self.durable"),
            test="replication/core/test_commit_point.py::"
            "test_alone_all_that_is_durable_is_committed_in_the_same_step",
        ),
        # A start applies what is beyond the checkpoint when its role has told a commit.
        "the log's end is applied before a role is known": mutant(
            swap("Node._open_store", "not config.has_meta", "True"),
            test="delay_server/test_node.py::"
            "test_a_start_applies_what_is_beyond_the_checkpoint_when_its_role_has_told_a_commit",
        ),
        # What waits to be committed is bounded.
        "any amount may wait to be committed": mutant(
            swap(
                "delay_server:Committer._takes_items",
                "self._queue.items_bytes <= UNCOMMITTED_BYTES_MAX",
                "True",
            ),
            test="delay_server/accepting/test_commits.py::"
            "test_items_wait_while_too_much_is_not_committed_and_records_without_items_pass",
        ),
        # Records without items are kept where items find no space.
        "no space for items, none for a word": mutant(
            swap(
                "Committer._commit_or_refuse",
                "light and heavy and await self._commit(light)",
                "False",
            ),
            test="delay_server/accepting/test_commits.py::"
            "test_records_without_items_are_kept_where_items_find_no_space",
        ),
        # Records without items wait for no room.
        "filing that lags holds up a word": mutant(
            swap("delay_server:Committer.run", "takes_items or not one.has_items", "takes_items"),
            test="delay_server/accepting/test_commits.py::"
            "test_a_commit_of_items_waits_while_filing_lags_and_records_without_items_pass",
        ),
    },
    "4 repeats": {
        # A repeat has the same bytes.
        "any body is a repeat": mutant(
            swap("Duplicates._same", "is_repeat(sent.item, original.item)", "True"),
            seed=5,
            scenario=told.CHANGES,
        ),
        "any due time is a repeat": mutant(
            swap("is_repeat", "delay is None or delay != other.attributes.get(DELAY_KEY)", "False"),
            seed=7,
            scenario=told.CHANGES,
        ),
        # What one commit has twice is kept once.
        "a commit knows nothing of itself": mutant(
            swap("_repeated", "len(keys) == 1", "True"),
            seed=2,
            scenario=told.CHANGES,
        ),
        # The window is read from the log by a mastership that begins.
        "a start knows no repeats": mutant(
            swap("Duplicates.catch_up", "self._note(header, columns)", "None"),
            seed=10,
            scenario=told.CHANGES,
        ),
        # What was cancelled may be sent again.
        "the cancelled are originals": mutant(
            swap("Duplicates._note", "~stays", "~(stays | (facts.outcome == Outcome.CANCELLED))"),
            seed=4,
            scenario=told.CHANGES,
        ),
        # What is dead is no original.
        "the dead are originals": mutant(
            swap("Duplicates._note", "~stays", "~(stays | (facts.outcome == Outcome.DEAD))"),
            test=_DUPLICATES
            + "test_what_became_of_a_message_says_if_it_is_an_original[3-False-False]",
        ),
        # A commit of repeats alone has a record: a master that was replaced confirms nothing.
        "repeats alone have no record": mutant(
            swap(
                "_Gathered.drafts",
                "[batch.draft() for batch in batches] or [_NOTHING_NEW]",
                "[batch.draft() for batch in batches]",
            ),
            test="delay_server/accepting/test_ingest.py::"
            "test_repeats_alone_are_confirmed_with_a_record_that_says_nothing",
        ),
        # A message that was moved has another due time than it was sent with.
        "a moved message has its new time": mutant(
            swap("Duplicates._note", "header.kind is RecordKind.MESSAGE", "True"),
            test=_DUPLICATES
            + "test_a_message_that_was_moved_is_an_original_until_what_took_its_place_is_gone",
        ),
        # With the same delay a repeat is due at another time.
        "a repeat has the time of its original": mutant(
            swap("Duplicates._sift", "has_one_due_time(message.item)", "True"),
            test=_DUPLICATES + "test_the_same_delay_is_a_repeat_and_told_with_the_first_time",
        ),
        # What names no due time is due when it comes, each time anew.
        "what is due at once has one time": mutant(
            swap("has_one_due_time", "names_due_time(item)", "True"),
            test=_DUPLICATES + "test_what_is_due_when_it_comes_is_found_later",
        ),
        # What is beyond the window is another message.
        "a window without an end": mutant(
            swap("Duplicates._oldest", "max(...)", "0"),
            test=_DUPLICATES + "test_the_window_ends_after_its_time",
        ),
    },
    "4 outcomes": {
        # Sending pauses while an outcome takes too long to become durable.
        "any age of an outcome": mutant(
            swap(
                "FactRecorder._look_at_gate", "is_old or ...", "self._not_durable >= OUTCOMES_MAX"
            ),
            test="delay_server/test_server.py::"
            "test_a_kill_while_the_disk_stalls_sends_again_what_was_sent_in_a_fifth_of_a_second",
        ),
        # And while too many of them are not durable.
        "any number of outcomes": mutant(
            swap("FactRecorder._look_at_gate", "is_old or ...", "is_old"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_sending_pauses_while_too_many_outcomes_are_not_durable",
        ),
        # And while too many are not applied, which costs memory.
        "any number of outcomes not applied": mutant(
            swap(
                "FactRecorder._look_at_gate",
                "self._unapplied_bytes >= UNAPPLIED_BYTES_MAX",
                "False",
            ),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_sending_pauses_while_too_many_outcomes_are_not_applied_and_says_the_way_out",
        ),
        # Facts have a commit of their own where no other comes.
        "outcomes wait for a commit of others": mutant(
            before(
                "FactRecorder._offer", "if not self._is_submitted:\n    ...", "linger_s = 3600.0"
            ),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_facts_are_durable_in_time_and_many_share_a_commit",
        ),
        # Sending goes on when they are durable.
        "sending paused for good": mutant(
            swap("FactRecorder._look_at_gate", "behind != self.behind", "behind"), seed=3
        ),
        # Facts wait neither for room in filing nor for anything else that items wait for.
        "outcomes wait as items do": mutant(
            swap("FactRecorder._offer", "False", "True"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_the_age_of_facts_is_bounded_whatever_holds_messages_up[filing]",
        ),
        # Facts are kept where messages are refused to leave free what is owed.
        "outcomes leave the floor free": mutant(
            swap("delay_server:Committer._write", "one.waiting.has_items", "True"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_the_age_of_facts_is_bounded_whatever_holds_messages_up[floor]",
        ),
        # Outcomes for which there was no space are tried again.
        "outcomes without space are dropped": mutant(
            swap("FactRecorder._ended", "self._writing + self._waiting", "self._waiting"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_facts_that_find_no_space_wait_and_none_is_lost",
        ),
        # Facts are none of the bytes that may wait to be committed: messages are not held up.
        "outcomes count as uncommitted": mutant(
            swap("CommitQueue.add", "batch.header.kind is not RecordKind.FACTS", "True"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_facts_are_none_of_the_bytes_that_may_wait_to_be_committed",
        ),
        # A start sends nothing again of which it has an outcome, committed or not.
        "outcomes behind the commit are not known": mutant(
            drop("Store.apply_tail", "schedule.facts.know(facts)"),
            test="storage/node/test_store.py::"
            "test_nothing_is_sent_again_of_which_an_outcome_is_durable_and_not_committed",
        ),
        # A row is settled when the schedule_log has its fact, and not before.
        "settled before it is applied": mutant(
            swap("FactRecorder.applied_to", "self._unapplied[0][1] <= sequence", "True"),
            test="delay_server/sending/test_fact_recorder.py::"
            "test_a_commit_of_which_the_facts_alone_are_applied_leaves_no_outcome_behind",
        ),
        # A row whose fact is applied is held no longer.
        "what was delivered is held for good": mutant(
            drop("FactRecorder.applied_to", "self._settle(rows)"), seed=1
        ),
        # What arrives and has an outcome by then does not enter the wheel.
        "what has an outcome goes straight in": mutant(
            swap("Handout.arrived", "self._schedule.facts.has_unapplied_outcomes", "False"),
            test="storage/node/test_store.py::"
            "test_nothing_is_sent_again_of_which_an_outcome_is_durable_and_not_committed",
        ),
    },
    "4 durable end": {
        # The durable end is written after each fsync of the log.
        "durable end not written": mutant(
            drop("MessageLog.sync_written", "self._write_durable_end()"), seed=1
        ),
        # The durable end is itself durable within 20 ms and before the log rests.
        "durable end not synced": mutant(drop("DurableEndFile.sync", "self._file.sync()"), seed=1),
        # A bad batch below the durable end is damage: nothing there is cut.
        "durable end not honoured": mutant(
            drop("_Recovery.hear", "self._witness = witness; self._bound = max(...)"),
            scenario=told.TAIL_ROT,
            seed=5,
        ),
        # Where the durable end is lost nothing is cut: the node names it or refuses to start.
        "lost durable end is no witness": mutant(
            swap("_Recovery._cut", "self._witness_damage is not None and size > position", "False"),
            scenario=told.END_LOST,
            seed=5,
        ),
        # Beyond the durable end the first bad batch and what follows is cut.
        "bad tail not cut": mutant(
            drop("_Recovery._cut", "file.truncate(position)"), scenario=told.TORN_TAILS, seed=10
        ),
        # Bytes kept beyond the durable end are written again before anything uses them.
        "kept bytes not written again": mutant(
            swap(
                "_Recovery._keep",
                "self._changed(batch.file).write_at(...)",
                "self._changed(batch.file)",
            ),
            scenario=told.FAILED_FSYNC,
            seed=1,
        ),
        # Bytes kept beyond the durable end are fsynced before anything uses them.
        "kept bytes not synced": mutant(
            drop("_Recovery._make_durable", "file.sync()"), scenario=told.UNSYNCED, seed=1
        ),
    },
    "4 filed minute": {
        # The floor of the log never decreases.
        "floor follows the clock back": mutant(
            swap("Committer._next_floor", "max(self._floor_minute, minute)", "minute"),
            scenario=told.CLOCK_SET,
            seed=3,
        ),
        # A message that is due before the floor is filed in the floor's minute.
        "filed below the floor": mutant(
            swap("filed_minutes", "np.maximum(...)", "due_ms // MINUTE_MS"), seed=1
        ),
        # When nothing arrives and a covered segment waits to be closed a FLOOR is recorded.
        "no FLOOR record": mutant(
            swap("Committer.append_floor", "now_ms // MINUTE_MS < wanted_minute", "True"), seed=2
        ),
    },
    "4 checkpoint": {
        # Segment files are durable before the checkpoint that names them.
        "files after the checkpoint": mutant(
            drop("CheckpointWork.write", "self.disk.sync_files(...)"), seed=1
        ),
        # The names of new segment files are durable before the checkpoint that names them.
        "names after the checkpoint": mutant(
            drop("CheckpointWork.write", "changed |= {'schedule_log', 'dispatch_log'}"), seed=1
        ),
        # Seals are durable before the checkpoint drops their segments.
        "seals after the checkpoint": mutant(drop("SealsLog.append", "file.file().sync()"), seed=1),
        # The temporary file is durable before it takes the name of the checkpoint, the identity or
        # a document.
        "checkpoint renamed unsynced": mutant(drop("replace_file", "file.sync()"), seed=1),
        # A checkpoint counts, and what it retires may go, only when its name is durable. So is the
        # name of what a pause is written to.
        "checkpoint's name unsynced": mutant(
            drop("replace_file", "disk.sync_directory(...)"), seed=1
        ),
        # A checkpoint is always there: the first start writes an empty one.
        "no checkpoint before the first seal": mutant(
            drop("_Recovery.run", "write_checkpoint(...)"), scenario=told.FIRST_SEAL, seed=1
        ),
        # The checkpoint's sequence is below the oldest row that waits in memory.
        "waiting rows counted as filed": mutant(
            swap("ScheduleLog.replayed_sequence", "... if waiting else ...", "self.last_filed"),
            test="storage/node/test_store.py::"
            "test_whatever_strikes_everything_is_filed_once_and_leaves_and_is_sealed[9-kept]",
        ),
    },
    "4 recovery": {
        # What lies beyond the checkpoint's length of a segment is cut and derived again.
        "all of a segment file counts": mutant(
            swap(
                "ChainedFile.cut",
                "file.truncate(self.length); return True",
                "self.length = file.size(); return False",
            ),
            seed=1,
        ),
        # The message_log is replayed from the checkpoint's sequence.
        "nothing replayed": mutant(
            swap("Store.apply_tail", "above + 1", "self.message_log.next_sequence"), seed=1
        ),
        # Replay skips the rows that a segment has already.
        "rows replayed again": mutant(
            swap("ScheduleLog._write_all", "group.above(segment.last_sequence)", "group"),
            before("ScheduleLog._file", "header, arrays = ...", "above = 0"),
            test="storage/node/test_store.py::"
            "test_rows_and_facts_that_are_filed_are_passed_over_by_a_replay",
        ),
        # Files that neither checkpoint, seals nor retired list names are deleted.
        "orphans kept": mutant(
            drop("_Recovery._remove_orphans", "self._disk.unlink(path)"),
            test="storage/node/test_store.py::"
            "test_whatever_strikes_everything_is_filed_once_and_leaves_and_is_sealed[4-kept]",
        ),
        # Names that a dead process left in the page cache are durable before anything relies on it.
        "directories not synced at a start": mutant(
            drop("Store.open", "disk.sync_directory(name)"),
            test="storage/node/test_retention.py::"
            "test_segments_leave_some_time_after_they_were_sealed_and_a_grace",
        ),
        # To be sent is what has no fact in all unsealed segments, however old.
        "only the last minutes are sent": mutant(
            after(
                "Mastership.__init__",
                "self.handout = ...",
                "self.handout.lanes.loading = (runtime.clock.now_ms() - 120_000, 0)",
            ),
            scenario=told.PAUSES,
            seed=1,
        ),
    },
    "4 files of batches": {
        # Where something is irregular only what ascends is taken, each record once.
        "records twice in a file": mutant(
            swap("_Walk.batches", "batch.records.stop", "0"),
            test="storage/batch/test_walk.py::"
            "test_whatever_strikes_nothing_is_wrong_or_comes_twice",
        ),
        # A batch that does not follow the one before it is an irregularity.
        "a batch that does not follow is taken": mutant(
            swap("_Walk.batches", "not self._follows(batch, before)", "False"),
            test="storage/batch/test_walk.py::"
            "test_a_batch_that_was_repeated_over_another_is_read_once_and_reported",
        ),
    },
    "4 schedule_log": {
        # The finer files of a split are durable before a checkpoint names them.
        "split files not synced": mutant(
            drop("Splitter.finish", "self._files.written(file)"), seed=1
        ),
        # Rows that arrive for a segment while it is split wait for the finer ones.
        "rows not held during a split": mutant(
            drop("ScheduleLog.flush", "self.waiting.hold(self.splits.active.key)"),
            scenario=told.SPLIT_IN_TRAFFIC,
            seed=4,
        ),
    },
    "4 identity": {
        # The incarnation is counted up and durable at every start.
        "incarnation not counted": mutant(
            swap("open_identity", "found.incarnation + 1", "found.incarnation"), seed=2
        ),
    },
    "4 retention": {
        # A seal marks a segment as deleted, durably, before its files go.
        "deleted without a mark": mutant(
            drop("Retention._mark", "sweep.marks = ..."), scenario=told.NO_AGES, seed=1
        ),
        # Only files of sealed segments go.
        "covered segments deleted unsealed": mutant(
            before(
                "Store._sweep",
                "sweep = ...",
                (
                    "segments = schedule.segments.values(); "
                    "retired += [x.key.path for x in segments if 0 < x.rows <= x.facts]"
                ),
            ),
            scenario=told.NO_AGES,
            seed=1,
        ),
        # What a restart would replay stays in the message_log.
        "log deleted above the checkpoint": mutant(
            swap("hold_on", "file.last_sequence > replayed_sequence", "False"),
            test="storage/node/test_retention.py::"
            "test_nothing_leaves_while_a_restart_would_replay_it",
        ),
        # A retired file stays until its grace is over.
        "no grace": mutant(
            swap("Retention.sweep", "self._limits.retired_grace_ms", "0"),
            scenario=told.GRACE,
            seed=1,
        ),
        # A file goes only when a durable checkpoint lists it.
        "deleted before it is listed": mutant(
            before("Retention.sweep", "return sweep", "sweep.unlink += paths"),
            scenario=told.NO_AGES,
            seed=1,
        ),
        # Each commit leaves free what is still to be written for what was accepted.
        "space seen too late": mutant(
            drop("delay_server:Committer._write", "self._budget.require(...)"),
            swap("DiskBudget._measure", "self.owed = owed", "self.owed = 0"),
            scenario=told.SMALL_DISK,
            seed=2,
        ),
        # That a name is gone is durable before a checkpoint lists it no longer.
        "deleted names not synced": mutant(
            swap(
                "CheckpointWork.write",
                "changed = self._unlink()",
                "self._unlink(); changed = set()",
            ),
            scenario=told.NO_AGES,
            seed=1,
        ),
        # The newest file of the message_log stays, however old.
        "newest log file deleted": mutant(
            after(
                "Retention._closed_log_files",
                "files = self._message_log.files()",
                (
                    "newest = files[-1].path if files else ''; files = (*files, "
                    "LogFile(newest, self._message_log.next_sequence))"
                ),
            ),
            scenario=told.NO_AGES,
            seed=1,
        ),
        # The checkpoint says from which record on the message_log is kept.
        "begin of the log forgotten": mutant(
            swap("Store.prepare_checkpoint", "sweep.first_sequence", "1"),
            scenario=told.NO_AGES,
            seed=1,
        ),
        # The checkpoint knows the epochs whose EPOCH_START may be deleted.
        "epochs forgotten": mutant(
            drop("_Recovery._restore_segments", "schedule.epochs = ..."),
            scenario=told.NO_AGES,
            seed=1,
        ),
    },
    "4 dispatch_log": {
        # Facts of the log behind the checkpoint count at a start.
        "facts forgotten at a start": mutant(
            before(
                "Store.apply_tail",
                "summary.replayed += batch.header.count",
                "if batch.header.kind == 33:\n    continue",
            ),
            scenario=told.YOUNG_FACTS,
            seed=3,
        ),
        # A fact that is filed already is not filed again by a replay.
        "facts replayed again": mutant(
            swap("CrossingOff.cross_off", "segment.last_fact >= facts.record[0]", "False"),
            test="storage/node/test_store.py::"
            "test_rows_and_facts_that_are_filed_are_passed_over_by_a_replay",
        ),
        # The checkpoint's sequence is below the oldest fact that is in no file.
        "waiting facts counted as filed": mutant(
            swap("ScheduleLog.replayed_sequence", "self.facts.oldest_unfiled()", "None"),
            test="storage/node/test_store.py::"
            "test_facts_of_a_segment_that_find_no_space_wait_all_of_them",
        ),
        # The finer segments of a split know up to which record their facts are filed.
        "a split forgets which facts are filed": mutant(
            drop("SplitJob._write_facts", "segment.last_fact = self.source.last_fact"),
            test="storage/node/test_store.py::"
            "test_a_replay_after_a_split_passes_over_the_facts_that_were_filed_before_it",
        ),
        # The facts of a segment are filed all or none: the last one says which.
        "later facts filed before earlier ones": mutant(
            swap(
                "CrossingOff.file",
                "waiting.append(part)",
                (
                    "last = len(part) - 1; "
                    "self._append(self._segments[code], part.slice(last, last + 1), epoch, "
                    "now_ms); waiting.append(part.slice(0, last))"
                ),
            ),
            test="storage/node/test_store.py::"
            "test_facts_of_a_segment_that_find_no_space_wait_all_of_them",
        ),
        # A delivery becomes a fact when the broker has answered, not when it is sent.
        "fact before the answer": mutant(
            after(
                "Requests.build",
                "self.counts.requests += 1",
                "self._settlement.settled(batch.entries, Outcome.DELIVERED, self._name)",
            ),
            seed=1,
        ),
    },
    "4 seals": {
        # Only a segment below the floor is sealed.
        "sealed while open": mutant(
            swap("ScheduleLog.covered_segments", "segment.key.end <= self.floor_minute", "True"),
            seed=3,
        ),
        # A segment is sealed on distinct facts of its rows, not on the number of its facts.
        "sealed on the number of facts": mutant(
            swap(
                "storage.schedule.sealing:look_through",
                "settled == len(rows)",
                "segment.facts >= len(rows)",
            ),
            scenario=told.FACTS_ROT,
            seed=15,
        ),
        # What a checkpoint that failed left behind the end of a file is cut before the next begins.
        "what was taken back stays in its file": mutant(
            drop("SealsLog._file_for", "if self._disk.exists(file.path) and file.cut(): ..."),
            test="storage/schedule/test_seals.py::"
            "test_what_is_taken_back_is_not_read_when_the_next_file_begins",
        ),
    },
    "4 batches": {
        # Columns and blob of a batch are checked by their CRC before they are used.
        "CRC of columns and blobs unchecked": mutant(
            swap("_part_fault", "zlib.crc32(data, seed) != crc", "False"), scenario=told.ROT, seed=3
        ),
        # The header of a batch is checked by its CRC before it is believed.
        "CRC of headers unchecked": mutant(
            swap("decode_header", "zlib.crc32(...) != crc", "False"),
            scenario=told.HEADER_ROT,
            seed=5,
        ),
        # The CRCs of a log are seeded with its uuid and kind.
        "CRCs not seeded": mutant(swap("log_seed", "zlib.crc32(...)", "0"), seed=1),
    },
    "4 segments": {
        # An item is checked by its own CRC just before it is sent.
        "CRC of items unchecked": mutant(
            swap("_suspects", "heads['crc'] != crcs", "np.zeros(len(crcs), np.bool_)"),
            scenario=told.ROT,
            seed=17,
        ),
    },
    "5 loading": {
        # A reading sets its cursor before it reads: what comes meanwhile lowers it, or goes in.
        "cursor moved after the load": mutant(
            drop("Handout.begin_load", "self.lanes.begin(0, job.until)"),
            after(
                "Reading._run",
                "yield from self._read_all()",
                (
                    "lanes = self._holder.lanes\n"
                    "if not self.lane:\n    lanes.begin(0, max(lanes.loading, self.until))"
                ),
            ),
            seed=17,
        ),
        # A load begins where the cursor is by then, though its plan began after that.
        "what came back before a load began is passed": mutant(
            drop("Handout.begin_load", "job.begin = min(...)"),
            test="storage/schedule/test_loading.py::"
            "test_what_is_given_back_while_a_load_is_planned_is_loaded",
        ),
        # A load ends before the minute of the first row that waits to be written.
        "loading passes what waits to be written": mutant(
            swap("Handout._before_pile", "pile_ms is None", "True"),
            test="storage/schedule/test_loading.py::"
            "test_what_finds_no_space_is_not_passed_by_a_load",
        ),
        # Nor what lies in a segment that has to be split first.
        "loading passes coarse segments": mutant(
            swap("Handout.begin_load", "min(until_ms, ...)", "until_ms"),
            test="storage/schedule/test_loading.py::"
            "test_a_load_does_not_pass_what_has_to_be_split_first",
        ),
        # What goes straight into the wheel is held, so that it is not loaded as well.
        "straight in and loaded": mutant(
            swap(
                "Handout.arrived", "self.hold(...)", "entries if wanted.all() else entries[wanted]"
            ),
            seed=7,
        ),
        # What is held is not handed out again.
        "what is held is loaded": mutant(
            swap("Reading._matching", "places.flags(...) == 0", "True"),
            swap("RowPlaces.hold", "self._look(rows) == 0", "np.ones(len(rows), np.bool_)"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # A row that waits for space is behind none of its minute that came later.
        "later rows overtake what waits for space": mutant(
            drop("ScheduleLog._file", "near |= self.waiting.are_behind(block.minute)"),
            test="storage/schedule/test_schedule_log.py::"
            "test_no_row_overtakes_one_of_its_minute_that_waits_for_space",
        ),
        # Of a minute that is thinned out it stays known what is held.
        "thinned out with what is held": mutant(
            drop("RowPlaces.thin_out", "self._thin = ..."),
            test="storage/schedule/test_handout.py::"
            "test_a_minute_of_which_little_is_held_is_thinned_out_and_its_rows_are_handed_out_once",
        ),
        # What is handed out is held from then on.
        "nobody holds what is handed out": mutant(
            drop("RowPlaces.hold", "self._set(...)"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # What has a fact is not loaded again.
        "what has a fact is loaded": mutant(
            drop("Reading._first_row", "places.settle(...)"), seed=1
        ),
        # What has its fact while its minute is open is not loaded again.
        "what has its fact by now is loaded": mutant(
            swap("RowPlaces.let_go", "SETTLED if settled else 0", "0"),
            test="storage/schedule/test_loading.py::"
            "test_whatever_interleaves_every_row_is_in_memory_at_most_once_and_leaves",
        ),
        # A batch that was met has the ordinals that it had.
        "other ordinals at each reading": mutant(
            swap("RowPlaces.first_row", "first if stop == records.stop else None", "None"),
            swap("RowPlaces.is_free", "not place or ...", "True"),
            scenario=told.SMALL_WHEEL,
            seed=4,
        ),
        # A minute stays open while something of it is held.
        "a minute is closed while some of it is held": mutant(
            swap("Handout._close_if_unused", "not places.held", "True"),
            scenario=told.SMALL_WHEEL,
            seed=3,
        ),
        # A load that is given up is made again.
        "the rest of a load is forgotten": mutant(
            drop("Handout._cap", "self.lanes.lower(0, key)"),
            test="storage/schedule/test_loading.py::"
            "test_what_a_load_that_is_capped_had_yet_to_come_by_is_loaded",
        ),
        # Facts that cannot be read withhold their segment.
        "what has a fact that cannot be read is sent again": mutant(
            swap("CrossingOff.of_segment", "bool(unreadable)", "False"), test=_MODEL_EIO
        ),
        # A split that cannot read the facts sets the segment aside.
        "a split goes on without the facts": mutant(
            drop("SplitJob._read_facts", "self.drop_finer()"),
            test="storage/node/test_store.py::test_a_split_that_cannot_wait_or_read_facts_sets_its_"
            "segment_aside_and_sends_none_twice",
        ),
    },
    "5 clock": {
        # Just before a batch is sent its due times are compared with the clock once more.
        "no look at the clock before sending": mutant(
            swap("readable_of", "clock.now_ms()", "2**62"), scenario=told.CLOCK_SET, seed=2
        ),
        # A step forward of more than 60 s holds dispatch until somebody vouches for it.
        "any step forward is followed": mutant(
            swap("ClockGuard.observe", "debt <= self._debt_max", "True"),
            scenario=told.CLOCK_LEAPS,
            seed=2,
        ),
    },
    "5 wheel": {
        # A tick takes out what is due by now, and nothing else.
        "sent 50 ms early": mutant(
            swap("Dispatch.run", "self._pacer.trusted_ms()", "_ + 50"),
            swap("readable_of", "clock.now_ms()", "_ + 50"),
            seed=1,
        ),
    },
    "6 sender": {
        # What was in flight when a connection ended is sent again.
        "requests lost with their connection": mutant(
            drop("Requests.connection_ended", "self.unanswered(request)"),
            scenario=told.SICK_GROUP,
            seed=5,
        ),
        # What was not answered in time is sent again.
        "requests lost with their time": mutant(
            drop("Group.timed_out", "self._requests.unanswered(request)"),
            test="sender/groups/test_group.py::"
            "test_a_dead_group_stops_no_other_and_everything_is_delivered[make_silent]",
        ),
        # What is queued for a group that is given up goes to another, or waits.
        "queued for a failed group, forgotten": mutant(
            drop("Group.give_back", "self._owner.give_back(...)"),
            scenario=told.SICK_GROUP,
            seed=1,
        ),
        # Every opening of a circuit ends in probes, and a probe that is taken closes it.
        "an open circuit stays open": mutant(
            swap("Circuit._follow", "TABLE[...]", "before if event is Event.WAITED else _"),
            scenario=told.SICK_GROUP,
            seed=5,
        ),
        # A request that was refused is tried again elsewhere.
        "refused requests forgotten": mutant(
            drop("Requests.refused", "self._settlement.retry(...)"),
            scenario=told.SICK_GROUP,
            seed=1,
        ),
        # Items that an answer lists as failed are tried again.
        "listed items taken for delivered": mutant(
            swap(
                "Requests.taken_in_part",
                "codes == ItemCode.SUCCESS",
                "codes != ItemCode.MESSAGE_DUPLICATE",
            ),
            seed=3,
        ),
        # Only the items that an answer lists are tried again.
        "delivered neighbours sent again": mutant(
            swap(
                "Requests.taken_in_part",
                "self._settlement.refused(...)",
                "self._settlement.refused(batch, codes, avoid=self._number)",
            ),
            test="sender/outcomes/test_answers.py::"
            "test_each_item_is_delivered_tried_again_or_given_up_by_its_own_codes[0-1]",
        ),
        # An answer is that of the request it names; what answers nothing is dropped.
        "answers taken in turn": mutant(
            swap(
                "BrokerConnection._match",
                "frame.opaque not in self.in_flight",
                "not self.in_flight",
            ),
            swap(
                "BrokerConnection._match",
                "self.in_flight.pop(frame.opaque)",
                "self.in_flight.pop(next(iter(self.in_flight)))",
            ),
            seed=3,
        ),
        # An item whose bytes are damaged is not sent, and its neighbours are.
        "damaged items sent": mutant(
            swap("readable_of", "batch.where(~damaged)", "batch.where(damaged)"),
            test="sender/groups/test_group.py::"
            "test_damaged_entries_are_reported_and_their_neighbours_go_on",
        ),
        # What is queued for a group that is given up does not wait for it to come back.
        "a dead group keeps its queue": mutant(
            swap("Group.give_back", "self._queue.lanes.clear()", "_ if self._stopping else []"),
            scenario=told.GROUPS,
            seed=6,
        ),
    },
    "5 memory": {
        # What exceeds the bound of the wheel is thrown out of it.
        "nothing thrown out of a full wheel": mutant(
            swap("Loader.bound", "excess <= 0", "excess <= 10**9"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # The cursor is lowered to what was given back.
        "cursor not set back": mutant(
            drop("Handout._give_back", "self.lanes.lower_to_rows(lanes, effective_ms)"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # What was given back may be handed out again.
        "what was given back stays held": mutant(
            swap("RowPlaces.let_go", "SETTLED if settled else 0", "SETTLED if settled else HELD"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # What was left on disk with nothing that leads to it is come by in the end.
        "forgotten for good": mutant(
            drop("Handout._remember", "self.lanes.lower_all(self._forgotten)"), test=_MODEL
        ),
        # What is thrown out of the wheel is given back.
        "thrown out and not given back": mutant(
            drop("Loader._throw_out", "self._give_back(gone)"),
            scenario=told.SMALL_WHEEL,
            seed=1,
        ),
        # What is left on disk since its subject waits is given back.
        "left on disk and not given back": mutant(
            drop("Lanes._drop", "self._on_disk.give_back(entries)"), scenario=told.HOT, seed=2
        ),
        # A minute is closed when nothing of it is held.
        "minutes stay open": mutant(
            drop("Handout._let_go", "self._close_if_unused(minute, places)"), test=_MODEL
        ),
    },
    "5 lanes": {
        # What is given back of a subject comes by its lane.
        "dropped without a lane": mutant(
            drop("Parked.park", "self._wait(subject, lane)"),
            scenario=told.HOT,
            seed=2,
        ),
        # A subject is in its lane before anything of it is given back.
        "given back before its lane is known": mutant(
            swap(
                "Lanes._admit",
                "self.parked.park(...); self._drop(late)",
                (
                    "self._on_disk.give_back(late); "
                    "self.parked.park(each_once(late['subject']).astype(np.intp), lane)"
                ),
            ),
            test="delay_server/lanes/test_lanes.py::"
            "test_a_subject_is_in_its_lane_before_anything_of_it_is_given_back",
        ),
        # From the moment in which a lane is closed its rows go into the wheel again.
        "a lane ends and keeps its subjects": mutant(
            drop("Parked.close", "self._on_disk.assign(subjects, 0)"), scenario=told.HOT, seed=2
        ),
        # What arrives of a subject with a lane waits on disk, and its lane comes by it.
        "arrivals pass their lane": mutant(
            drop("Handout._lower_lanes", "self.lanes.lower_to_rows(...)"), test=_MODEL
        ),
        # And what waits to be written.
        "what waits to be written passes its lane": mutant(
            drop("Handout.aside", "self._lower_lanes(...)"),
            test="storage/schedule/test_loading.py::"
            "test_what_waits_to_be_written_is_come_by_by_a_lane_that_is_beyond_it",
        ),
        # A lane comes by what a reading under way has yet to come by of a subject that joins.
        "a subject joins past a reading": mutant(
            swap("Handout._assign", "min(...)", "self.lanes.loading"),
            test="storage/schedule/test_loading.py::"
            "test_a_subject_that_gets_a_lane_during_a_load_comes_by_it_with_all_its_rows",
        ),
        # And by what its lane before had yet to come by.
        "a subject joins past its lane before": mutant(
            swap("LaneTable.assign", "min([loaded, ...])", "loaded"), test=_MODEL
        ),
        # The cursor of a lane moves before its rows are read.
        "cursor of a lane moved after its reading": mutant(
            drop("DrainJob._start", "lanes.begin(self.lane, self.until)"),
            after(
                "Reading._run",
                "yield from self._read_all()",
                (
                    "if self.lane in self._holder.lanes:\n"
                    "    self._holder.lanes.begin(self.lane, self.until)"
                ),
            ),
            test="storage/schedule/test_loading.py::"
            "test_what_came_since_the_plan_and_before_the_cursor_of_its_lane_is_come_by",
        ),
        # It stays where it was lowered to since the reading was planned.
        "a lane passes what came since the plan": mutant(
            swap("DrainJob._start", "lanes.loading_of(self.lane) == self.begin", "True"),
            test="storage/schedule/test_loading.py::"
            "test_what_came_since_the_plan_and_before_the_cursor_of_its_lane_is_come_by",
        ),
        # A subject that joins a lane is read with it from then on.
        "the only one of a lane after others joined": mutant(
            drop("DrainJob._start", "self._only = self._find_only()"),
            test="storage/schedule/test_loading.py::"
            "test_a_subject_that_joins_a_lane_of_one_is_read_with_it_though_that_was_planned",
        ),
        # A lane never overtakes lane 0: what is after its cursor may wait to be written.
        "a lane overtakes lane 0": mutant(
            swap(
                "Handout.begin_drain",
                "min((until_ms + 1, 0), self.lanes.loading)",
                "(until_ms + 1, 0)",
            ),
            test="storage/schedule/test_loading.py::"
            "test_a_lane_does_not_pass_what_lane_0_has_not_reached",
        ),
        # Lanes that are behind open no further minutes where much is open.
        "any number of open minutes": mutant(
            swap("Handout.may_open", "minute in self._minutes or ...", "True"),
            test="storage/schedule/test_loading.py::"
            "test_a_lane_that_is_behind_opens_no_further_minute_while_many_rows_are_open",
        ),
        # A lane hands out no more than was wanted.
        "a lane hands out whatever it finds": mutant(
            swap("DrainJob._not_too_many", "len(entries) > self._rows_max", "False"),
            test="storage/schedule/test_loading.py::"
            "test_a_lane_hands_out_no_more_than_was_wanted_though_more_came_since_the_plan",
        ),
        # What it found beyond that is given back.
        "what a lane found too much of is lost": mutant(
            drop("DrainJob._not_too_many", "self.surplus = ..."),
            test="storage/schedule/test_loading.py::"
            "test_a_lane_hands_out_no_more_than_was_wanted_though_more_came_since_the_plan",
        ),
    },
    "5 names": {
        # The number of a subject is given again only when nothing holds it.
        "the pile's numbers are given again": mutant(
            swap("ScheduleLog.condemn_subjects", "self.waiting", "()"),
            scenario=told.FEW_NAMES,
            seed=2,
        ),
        # A collection leaves the numbers alone that were given since it began.
        "numbers given meanwhile are swept": mutant(
            swap("SubjectTable.sweep", "part[~self._used[part]]", "part"),
            scenario=told.FEW_NAMES,
            seed=1,
        ),
        # The number of a subject is given again only when nothing of it is held.
        "numbers of what is held are given again": mutant(
            swap("Handout.holds_subjects", "self._held_of[:count] > 0", "np.zeros(0, np.bool_)"),
            scenario=told.HOT_FEW_NAMES,
            seed=2,
        ),
    },
    "4 dead letters": {
        # A row of which a dead letter was made is held no longer.
        "what is dead is held for good": mutant(
            drop("Mastership.buried", "self.handout.settle(...)"), scenario=told.POISON, seed=1
        ),
        # The fact that a message is dead comes when its record is durable, and not before.
        "fact before record": mutant(
            before(
                "Mastership.give_up",
                "self.dead_recorder.give_up(...)",
                (
                    "self.fact_recorder.cross_off(entries, "
                    "self._runtime.clock.now_ms(), '', Outcome.DEAD)"
                ),
            ),
            scenario=told.POISON_AND_LATE_RECORDS,
            seed=1,
        ),
        # A MOVE record makes a fact about the row that it names.
        "move without fact": mutant(
            swap("facts_stated", "header.kind not in STATING_KINDS", "_ or header.kind == 5"),
            scenario=told.POISON,
            seed=1,
        ),
        # A row of a dead segment is never loaded.
        "dead row loaded": mutant(
            swap(
                "ScheduleLog.apply",
                "header.kind in {RecordKind.MESSAGE, RecordKind.MOVE}",
                "_ or (header.kind is RecordKind.DEAD and header.base_sequence % 4 == 0)",
            ),
            scenario=told.POISON,
            seed=1,
        ),
        # A fact about a row of a dead segment is none about a minute of its day.
        "facts of dead letters count for minutes": mutant(
            swap("dead_minute", "DEAD_MINUTES_FROM + key.start // Span.DEAD.minutes", "key.start"),
            scenario=told.POISON,
            seed=1,
        ),
        # A dead letter is named by one record only.
        "two records about one dead letter": mutant(
            drop("DeadLetters._append", "leaving.update(sequences)"),
            test="delay_server/dead/test_dead_letters.py::"
            "test_what_was_changed_before_a_crash_is_not_changed_again_as_soon_as_http_answers",
        ),
        # A dead letter that was requeued or dropped is none any more.
        "a settled dead letter is listed on": mutant(
            drop("ScheduleLog.apply", "self.dead.forget(...)"),
            test="storage/schedule/test_dead_index.py::"
            "test_the_seal_of_a_settled_day_counts_what_became_of_its_rows",
        ),
    },
    "6 receivers": {
        # A verdict counts on the connection that has the message, and on no other.
        "a settle from another connection": mutant(
            swap(
                "AttachedGroup._take",
                "member.unsettled.pop(sequence, None)",
                "next((one.unsettled.pop(sequence) for one in self._members.values() "
                "if sequence in one.unsettled), None)",
            ),
            scenario=told.RECEIVERS,
            seed=5,
        ),
        # Who says nothing for a lease has nothing any more.
        "a lease that never ends": mutant(
            swap("AttachedGroup.flow", "trio.current_time() + LEASE_S", "_ + 10_000"),
            scenario=told.RECEIVERS,
            seed=1,
        ),
        # What is lost with a connection goes to others.
        "unsettled at a lost connection": mutant(
            drop("AttachedGroup.detach", "self._owner.unsettled(...)"),
            scenario=told.RECEIVERS,
            seed=8,
        ),
        # No more is unsettled than a receiver takes, in items and in bytes.
        "credit of items ignored": mutant(
            swap("Attachment.items_left", "len(self.unsettled)", "0"),
            scenario=told.RECEIVERS,
            seed=1,
        ),
        "credit of bytes ignored": mutant(
            swap("Attachment.bytes_left", "self.unsettled_bytes", "0"),
            test=f"{_RECEIVERS}test_bytes_are_a_credit_as_well",
        ),
        # What is given back was not tried.
        "a release is a try": mutant(
            swap(
                "AttachedGroup.release",
                "self._owner.give_back(...)",
                "self._owner.unsettled(batch, group=self.name, tries_max=8)",
            ),
            scenario=told.RECEIVERS,
            seed=1,
        ),
        # An attempt is one more than the tries before it.
        "no try is counted": mutant(
            swap(
                "AttachedGroup._deliver_to", "(batch.tries + np.uint32(1)).tolist()", "[1] * count"
            ),
            scenario=told.RECEIVERS,
            seed=3,
        ),
        # What ends its receivers is given up.
        "a count of tries that never rises": mutant(
            swap("Refusals.note", "1 if earlier is None else earlier.number + 1", "1"),
            scenario=told.DEADLY,
            seed=1,
        ),
        # It takes no others with it.
        "poison goes out beside others": mutant(
            swap(
                "AttachedGroup.enqueue",
                "self._shared.left_with.noted(parcel.entries, ALONE_AFTER)",
                "None",
            ),
            scenario=told.DEADLY,
            seed=1,
        ),
        "others go beside poison": mutant(
            drop("AttachedGroup._deliver", "if member is self._alone.member: ..."),
            scenario=told.DEADLY,
            seed=1,
        ),
        # Who waits for a member that holds nothing does not hold up the others for good.
        "kept free for ever": mutant(
            swap("Attachment.free_in_s", "KEPT_S - abs(now_ms - newest.sent_ms) / 1000", "KEPT_S"),
            test="sender/groups/test_members.py::"
            "test_a_handler_that_takes_long_holds_up_the_others_once_for_so_long",
        ),
        "no turn for others": mutant(
            swap(
                "Alone.choose",
                "self._is_out or self._is_others_turn or (self.member is None and not self.queues)",
                "self._is_out or (self.member is None and not self.queues)",
            ),
            test="sender/groups/test_members.py::test_others_have_a_turn_between_two_that_go_alone",
        ),
        # Who does not take what it gets, gets no more.
        "given on to who does not read": mutant(
            swap(
                "Attachment.is_choked", "self.connection.unsent_bytes > _UNSENT_BYTES_MAX", "False"
            ),
            test=f"{_RECEIVERS}test_a_receiver_that_reads_a_byte_a_second_is_let_go_and_delays_"
            "only_what_it_had[the network is full]",
        ),
        # Of a name so many are attached as cost others nothing.
        "any number attach": mutant(
            drop(
                "AttachedGroup.attach",
                "if (count := len(self._members)) >= self._shared.config.receivers_max: ...",
            ),
            test=f"{_RECEIVERS}test_who_finds_too_many_of_its_name_is_taken_when_one_has_left",
        ),
        # A receiver gets what its own patterns take, and no more.
        "subjects that it does not take": mutant(
            swap("SubjectRoutes._takers", "one.take(name)", "True"),
            test=f"{_TAKING}test_each_receiver_gets_only_what_the_patterns_take_that_it_brought",
        ),
        # What waits for one goes to no other that has come since.
        "queued before it came": mutant(
            drop("AttachedGroup._take_sets", "self.give_back()"),
            test=f"{_TAKING}test_what_waits_for_one_is_not_given_to_who_comes_and_does_not_take_it",
        ),
        # Of several names each gets a copy, and what the first has of a subject is copied, too.
        "kept by the first name": mutant(
            swap("Outlet.take_stranded", "lane == self._lanes.shared", "False"),
            test=f"{_COPIES}test_what_one_name_holds_is_taken_back_when_another_joins",
        ),
        "settled before it is copied": mutant(
            swap(
                "copies_of",
                "[*intake.drafts(), move_of(entries, moved, [one[-1] for one in subjects])]",
                "[move_of(entries, moved, [one[-1] for one in subjects]), *intake.drafts()]",
            ),
            test=f"{_COPIES}test_whatever_part_of_a_commit_is_kept_the_message_is_there_or_all_"
            "copies_are",
        ),
        "put off for all names": mutant(
            swap(
                "Mastership.subject_for", "retry_subject(real.decode(), name).encode()", "subject"
            ),
            test=f"{_COPIES}test_what_one_name_holds_is_taken_back_when_another_joins",
        ),
        "a copy for all names": mutant(
            swap("SubjectRoutes._set", "(group,) if group in receiving else ()", "names[:1]"),
            test=f"{_COPIES}test_what_one_name_does_the_other_does_not_see",
        ),
        # What one gives back goes to another.
        "released to the same again": mutant(
            drop("AttachedGroup.release", "member.served = ..."),
            test=f"{_TAKING}test_what_one_gives_back_goes_to_another_that_is_idle",
        ),
        # Nothing comes before it is due, if the clock was set back while it waited.
        "early at receivers": mutant(
            swap(
                "AttachedGroup._deliver_to",
                "shared.clock",
                "type('', (), {'now_ms': staticmethod(lambda: 1 << 62)})",
            ),
            test=f"{_RECEIVERS}test_a_clock_that_is_set_back_holds_messages_back",
        ),
        # The record of a LATER settles the old row, and nothing does so before it.
        "a later that settles before its record": mutant(
            swap(
                "Receivers._settle",
                "batches, unknown = group.take(...)",
                (
                    "batches = []\n"
                    "unknown = group.done(attachment, _sequences(by_verdict[Verdict.LATER]))"
                ),
            ),
            scenario=told.RECEIVERS,
            seed=1,
        ),
        # An answer to a SETTLE says that all of it is committed.
        "done is answered at once": mutant(
            swap(
                "Receivers._settle",
                "master.fact_recorder.when_committed(...)",
                "self._ended(settling)",
            ),
            scenario=told.RECEIVERS_IN_CRASHES,
            seed=5,
        ),
        "done is answered when durable": mutant(
            drop("FactRecorder._take", "self._told_of_taken.append(...)"),
            test=(
                "delay_server/sending/test_fact_recorder.py::"
                "test_whoever_waits_for_outcomes_is_told_once_they_are_committed"
            ),
        ),
        # What was appended is refused by nobody, and what was not is not appended any more.
        "what may be kept is answered": mutant(
            swap(
                "Ingest._close_under_way",
                "one.connection.close(...)",
                "one.connection.answer(one.frame, ResponseCode.BROKER_ERROR)",
            ),
            test="delay_server/accepting/test_ingest.py::"
            "test_what_is_dropped_is_not_acknowledged_whatever_became_durable",
        ),
        "items are appended during a handover": mutant(
            swap("Committer._takes_items", "self._replicas.why_not_append", '""'),
            test="delay_server/accepting/test_commits.py::"
            "test_items_wait_while_replicas_do_not_let_them_be_appended",
        ),
        "later is answered at once": mutant(
            drop("Receivers._settle", "settling.waits += len(planned)"),
            swap("Receivers._settle", "partial(self._ended, settling)", "lambda _: None"),
            test=f"{_RECEIVERS}test_a_later_is_answered_once_it_is_durable",
        ),
    },
    "6 controls": {
        # A change is durable before it is answered.
        "a pause is not kept": mutant(
            drop("ControlsStore.take", "write_controls(...)"), scenario=told.OPERATED, seed=1
        ),
        # What has waited on disk comes back when it may leave.
        "a resumed subject is not fetched": mutant(
            swap("Parked._wait", "lane != self._nowhere", "lane > self._nowhere"),
            scenario=told.OPERATED,
            seed=1,
        ),
        # Nothing of a subject that is paused leaves.
        "a paused subject leaves": mutant(
            swap("LaneRules._paused", "self._state[subjects] == _PAUSED", "_ & False"),
            scenario=told.OPERATED,
            seed=1,
        ),
        # Nothing is queued for a broker group that is paused.
        "a paused group is sent to": mutant(
            swap("Intake.takes", "not self._queue.rule.paused", "True"),
            scenario=told.CALM_OPERATED,
            seed=2,
        ),
    },
    "6 reasons": {
        # What is due of a paused subject is said to be paused, wherever it is.
        "what is parked is said to wait": mutant(
            swap(
                "_reason_now",
                "row.due_ms <= parts.pacer.trusted_ms()",
                "number is not None and not master.lanes.is_parked(number)",
            ),
            scenario=told.OPERATED,
            seed=4,
        ),
        # Dead letters are counted among what was not delivered.
        "the count forgets dead letters": mutant(
            drop("counts", "found['dead'] = master.dead_letters.pending"),
            scenario=told.POISON,
            seed=1,
        ),
        # A message that was given up is not said to be delivered.
        "a dead letter seems delivered": mutant(
            swap("_explained", "Reason.DEAD", "None"),
            scenario=told.POISON,
            seed=1,
        ),
        # Nothing is said to wait for its turn while no group can be reached.
        "every group seems to be there": mutant(
            swap("_look_at", "group.is_trusted", "True"),
            test="delay_server/admin/test_explain.py::test_a_group_that_fences_the_node_is_said_to",
        ),
        # What waits for its time on disk is not counted as due.
        "all that is on disk seems due": mutant(
            swap("counts", "store.schedule.pending_before(now_ms)", "store.schedule.pending"),
            seed=2,
        ),
    },
    "8 changes": {
        # What is cancelled has no bytes for whoever would send it.
        "the set is not asked where an item is read": mutant(
            swap("Cancelling._gone", "one in self._minutes", "False"),
            seed=1,
            scenario=told.CHANGES,
        ),
        # An entry may stand for a row whose minute is open long after its record was applied.
        "a sequence leaves while its minute is open": mutant(
            swap("Changer.run", "minute not in still", "True"),
            seed=1,
            scenario=told.CHANGES,
        ),
        # "Cancelled" is a word about what is committed.
        "a change is answered before it is committed": mutant(
            swap("Committer.commit_records", "await ended.wait()", "was_kept = True"),
            seed=2,
            scenario=told.CHANGES,
        ),
        # What finds no space is not made.
        "what found no space stays in the set": mutant(
            swap("Changer._commit", "partial(self.cancelling.leave, sequences)", "list"),
            test=_CHANGES + "test_changer.py",
        ),
        # What a broker or a receiver has is never called cancelled.
        "what is in flight is cancelled": mutant(
            swap("Sender.with_whom", "self._groups.with_whom(wanted)", "{}"),
            seed=7,
            scenario=told.CHANGES,
        ),
        "what is in doubt is cancelled": mutant(
            swap("Sender.with_whom", "self._history.doubtful(wanted)", "{}"),
            test=_CHANGES + "test_requests.py",
        ),
        "facts are not looked at": mutant(
            swap("Changer._ended", "facts.get(one.row.sequence)", "None"),
            seed=1,
            scenario=told.CHANGES,
        ),
        "outcomes that are not applied are not looked at": mutant(
            swap("Changer._busy", "master.fact_recorder.having(wanted)", "()"),
            seed=11,
            scenario=told.CHANGES,
        ),
        # A message that was moved says itself when it is due.
        "a moved item says the time before": mutant(
            swap("_moves_of", "item_due_at(row.item, due_ms)", "row.item"),
            seed=1,
            scenario=told.CHANGES,
        ),
        # A hash of 64 bits names no message.
        "a hash is taken for an id": mutant(
            swap("_is_meant", "message_id != sought.message_id", "False"),
            test=_CHANGES + "test_requests.py",
        ),
    },
}
"""Of the delay server; sections of the design."""
META = {
    "8 writer": {
        # Nobody is told of a change, and no answer depends on it, before the store has it.
        "answer before the store": mutant(
            drop("Committer._commit", "self._registry.apply(changes); self._storing = ()"),
            drop("Committer._commit", "self._on_changed(changes); await self._end_all(...)"),
            before(
                "Committer._commit",
                _COMMIT,
                (
                    "self._registry.apply(changes); self._on_changed(changes); await "
                    "self._end_all(intents, None)"
                ),
            ),
            seed=1,
        ),
        # After a commit that failed everything is loaded anew before anything else is planned.
        "go on after a failed commit": mutant(
            swap("Committer._turn_stale", "self.is_stale = True", "self.is_stale = False"), seed=1
        ),
        # An election waits for no registration.
        "an election waits for its turn": mutant(
            swap(
                "Committer._plan_some",
                "self._urgent or self._waiting",
                "self._waiting or self._urgent",
            ),
            test="meta_server/known/test_commits.py",
        ),
        # What is about everything shares its commit with nobody.
        "an operator's change shares a commit": mutant(
            swap(
                "Committer._plan_some",
                "intent.keys and taken.isdisjoint(intent.keys)",
                "taken.isdisjoint(intent.keys)",
            ),
            test="meta_server/known/test_commits.py",
        ),
        # When the store fails, whoever waits for it is told.
        "what waits is forgotten": mutant(
            swap(
                "Committer._turn_stale",
                "(*intents, *waiting)",
                "intents",
            ),
            seed=9,
        ),
    },
    "8 timestamps": {
        # The timestamps of answers never decrease, whatever the clock does.
        "timestamps of the wall clock": mutant(
            swap("Timestamps.read", "max(self._last, ...)", "min(now_ms, self._ceiling)"), seed=3
        ),
        # After a restart timestamps begin at the bound that was stored.
        "timestamps begin anew": mutant(
            swap("MetaServer._wire_keeping", "self.registry.timestamp_ms", "0"), seed=3
        ),
    },
    "8 liveness": {
        # After a start everybody known is waited for, so that one who died meanwhile is noticed.
        "nobody is waited for after a start": mutant(
            swap("SilenceWatch._look", "watched(registry)", "()"),
            test="meta_server/wire/test_handlers.py::"
            "test_a_restart_of_the_meta_server_flaps_nobody_and_notices_who_died_meanwhile",
        ),
        # A restart of the meta server takes nobody from routes.
        "silent at the start": mutant(
            swap(
                "Liveness.start",
                "self._at.setdefault(...)",
                "self._at.setdefault(name, now - self._timeout_s + 5)",
            ),
            seed=2,
        ),
        # Time in which the process itself did not run is nobody's silence.
        "a stall counts as silence": mutant(
            swap("SilenceWatch.run", "missed > _STALL_S", "False"),
            test="meta_server/test_server.py::"
            "test_a_process_that_was_stopped_for_a_while_makes_nobody_silent",
        ),
        # A group whose master is silent for the time-out is taken from routes.
        "the silent stay": mutant(
            swap("plan_silence", "not known.is_watched", "known.is_watched"), seed=1
        ),
    },
    "8 routing": {
        # The delay groups of a subject are ranked by nothing that changes.
        "delay groups as they come": mutant(
            swap(
                "_score",
                "xxh3_64_intdigest(...)",
                "xxh3_64_intdigest(f'{group.name}\\0{subject}{group.updated_ms}'.encode())",
            ),
            seed=1,
        ),
        # A delay producer never gets an empty list while a delay group is known.
        "an empty list for a delay producer": mutant(
            swap("_delay_groups", "taking or open_to_it or known", "taking"), seed=4
        ),
        # A route gets another group only where some that it has are retired or removed.
        "routes grow while they work": mutant(
            swap("_counting", "not group.is_retired", "group.state is not BrokerState.NRW"),
            seed=50,
        ),
        # An answer is kept as long as all is as it was.
        "the answer of before": mutant(
            swap(
                "RouteAnswers.find", "self._registry.version != self._version", "self._version < 0"
            ),
            seed=1,
        ),
        # Groups that went off-line, or are silent, are told to nobody.
        "what is away is told": mutant(
            swap("answer_of", "group.state is not BrokerState.NRW", "True"), seed=1
        ),
        # A group that is read-only is not told to producers.
        "read-only for nobody": mutant(
            swap("answer_of", "is_producer and group.is_read_only", "False"), seed=1
        ),
    },
    "8 pushes": {
        # Connected clients are told of a change at once.
        "no pushes": mutant(drop("MetaServer._changed", "self.handlers.pusher.changed()"), seed=3),
        # A client is pushed only what it was not told yet.
        "pushes without news": mutant(
            swap("Pusher._push_if_news", "answer.signature != subscription.sent", "True"), seed=1
        ),
    },
    "8 roles": {
        # An incarnation older than one that registered is refused.
        "an older incarnation": mutant(
            swap("_check_start", "request.incarnation < known.incarnation", "False"), seed=13
        ),
        # A later incarnation elsewhere is refused while the one before is heard.
        "a later copy of who lives": mutant(swap("_check_start", "case.is_heard", "False"), seed=2),
        # A disk that is known by another node id is refused.
        "a copy by another name": mutant(swap("_check_copy", "other.key != own", "False"), seed=6),
        # A node that alone is in sync is refused with another disk.
        "a wiped master": mutant(
            swap("_check_identity", "set(group.record.in_sync) == {known.node_id}", "False"),
            test="meta_server/groups/test_roles.py::test_who_does_not_belong_is_refused",
        ),
        # Of two starts with the same incarnation the second is refused.
        "two starts with one number": mutant(
            swap("_check_start", "request.incarnation == known.incarnation", "False"), seed=2
        ),
        # A disk in sync whose log lacks what it was known to have is refused.
        "an older copy": mutant(
            swap(
                "_check_end",
                "missing <= 0 and is_later",
                "missing <= 0 or request.last_epoch <= known.last_epoch",
            ),
            seed=2,
        ),
        # That a log is in a new epoch is stored before the node is answered.
        "the end of a log is not noted": mutant(
            swap("_node", "before.last_epoch >= request.last_epoch", "True"), seed=1
        ),
        # A master that was started again has a new epoch.
        "one epoch for two lives": mutant(
            swap("_started_again", "max(...) + 1", "max(record.epoch, request.last_epoch)"), seed=7
        ),
        # A group begins above whatever epoch its first node's log has.
        "a group begins at epoch 1": mutant(swap("_begun", "max(...) + 1", "epoch + 1"), seed=6),
        # Nobody is master but whom the record names.
        "whoever is in sync is master": mutant(
            swap("DelayGroup.role_of", "self.record.master == own", "True"),
            test="meta_server/groups/test_roles.py::test_who_is_master_follows_from_the_record",
        ),
        # A log that another group has is refused.
        "the log of another group": mutant(
            swap("_check_log", "other.name != request.group", "False"), seed=2
        ),
    },
    "8 set back": {
        # A record of the file is above all that the store may have told.
        "what was told is told again": mutant(
            swap("raised", "version + VERSIONS_SKIPPED", "version + 1"),
            test=_RECORD_FILE,
        ),
        # The store takes what is newer in the file.
        "the file is not looked at": mutant(
            swap("RecordedStore.load", "stored[name].pair < kept.pair", "False"),
            test=_RECORD_FILE,
        ),
        # A group that the file lacks is proven by its nodes only.
        "a backup is believed": mutant(
            swap("RecordedStore.load", "stored.keys() - self._records.keys()", "()"),
            test=_RECORD_FILE,
        ),
        # A record that is stored is in the file before anybody is told.
        "the file comes later": mutant(
            drop("RecordedStore.commit", "self._write(...)"), test=_RECORD_FILE
        ),
        # What a master says counts for the record by which it may send.
        "a master of another record is enough": mutant(
            swap("_may_send", "node.told.record == record", "True"), test=_SET_BACK
        ),
        "a master started again is enough": mutant(
            swap(
                "_may_send",
                "record.master == registration.Master(...)",
                "record.master is not None",
            ),
            test=_SET_BACK,
        ),
        # A disk in the place of one in sync may know less than that.
        "another disk has spoken": mutant(
            swap("_has_spoken", "node.storage_uuid == record.in_sync.get(...)", "True"),
            test=_SET_BACK,
        ),
        # Of an empty store the nodes alone know how many there were.
        "nodes that nobody registered": mutant(
            drop("SetBacks._newest", "known.update(one.told.nodes if one.told else ())"),
            test=_SET_BACK,
        ),
        # Two records of one epoch and version are of two stores.
        "another record of the same version": mutant(
            swap("is_older", "pair < known or ...", "pair < known"), test=_SET_BACK
        ),
        # A node that was told more does not go back.
        "an older record is believed": mutant(
            swap("Replica.told", "self.newest is not None and ...", "False"),
            test=f"{_FAILOVER_ROLES}"
            "test_an_older_record_or_another_of_the_same_version_is_not_believed",
        ),
    },
    "8 elections": {
        # A meta server that starts has heard nobody yet.
        "a meta server that has begun elects": mutant(
            swap("GroupState.why_begin", "not self._has_begun(record, now)", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # A master cannot drop the silent while there is no meta server.
        "blocked since before the meta server": mutant(
            swap("GroupState._why_depose", "min(...)", "found.blocked_s(now)"),
            test="meta_server/groups/test_elections.py",
        ),
        # Silence begins an election when its time has come, and not when somebody speaks next.
        "silence is seen when somebody speaks": mutant(
            swap("GroupState.look_at", "min(...)", "math.inf"),
            test=f"{_GROUP_CHANGES}test_a_master_that_falls_silent_is_replaced_within_seconds",
        ),
        # The routes of a master stay that is cut off from the meta server alone.
        "a master that a slave hears leaves the routes": mutant(
            swap("Nodes._reply", "self._group_changes.may_send(group.name)", "False"),
            test=f"{_GROUP_CHANGES}"
            "test_the_routes_of_a_master_stay_while_a_slave_hears_that_it_may_send",
        ),
        # A start that another one has followed speaks for nobody.
        "a start of before votes": mutant(
            swap("GroupChanges.registration_on", "known is None or ...", "known is None"),
            test=f"{_GROUP_CHANGES}"
            "test_who_has_not_registered_on_a_connection_learns_and_changes_nothing",
        ),
        # The group is where its master is.
        "the address of the master before": mutant(
            swap("_place", "node.address", "shown.master"),
            test=f"{_GROUP_CHANGES}"
            "test_a_master_that_is_started_again_begins_an_election_that_votes_end",
        ),
        # Votes count for the record for which they were given.
        "votes outlive what the store forgot": mutant(
            drop("GroupChanges.loaded_anew", "state.begin_again()"),
            test=f"{_GROUP_CHANGES}test_votes_are_asked_for_again_when_everything_is_loaded_anew",
        ),
    },
    "8 brokers": {
        # A group that is heard keeps its address, whoever else goes on-line for it.
        "whoever goes on-line": mutant(
            swap("plan_register", "not is_open", "_ and not is_online"), seed=3
        ),
        # The address of a group that was entered is the one that was entered.
        "any address": mutant(
            swap("is_entered_at", "address not in addresses_of(entered)", "False"), seed=2
        ),
        # A master of another kind than its group is refused.
        "any kind": mutant(
            swap("plan_register", "known.kind is not kind", "False"),
            test="meta_server/wire/test_handlers.py::"
            "test_wrong_roles_groups_and_addresses_are_refused_with_the_reason",
        ),
        # Names with blanks, slashes or too many bytes are refused.
        "any name": mutant(
            swap("check_name", "require_name(what, name)", "None"),
            seed=3,
        ),
    },
    "8 deciding": {
        # What others had stored meanwhile is decided on when the turn comes.
        "deciding again": mutant(
            swap("Request.decide", "known != self.known", "self.known is None"),
            test="meta_server/wire/test_handlers.py::"
            "test_many_who_use_a_new_subject_at_once_get_the_same_route",
        ),
        # Whoever was heard meanwhile has not fallen silent.
        "deciding on who was heard before": mutant(
            swap("Request.decide", "known != self.known", "known[:1] != (self.known or (0,))[:1]"),
            test="meta_server/wire/test_handlers.py::"
            "test_a_broker_elsewhere_is_refused_if_the_old_place_speaks_before_its_turn",
        ),
    },
    "8 bounds": {
        # A subject beyond its limit is refused.
        "huge subjects": mutant(swap("routed_subject", "subject_size_fault(sent)", "None"), seed=2),
        # Names of a client beyond their limit are refused.
        "huge names of clients": mutant(
            swap(
                "_routed",
                "len(text.encode()) > _TEXT_BYTES_MAX",
                "False",
            ),
            seed=2,
        ),
        # There are no more subjects than the settings allow.
        "subjects without number": mutant(
            swap("ClientRoutes.check_place", "... >= subjects_max", "False"),
            test="meta_server/wire/test_handlers.py::test_there_are_no_more_subjects_than_allowed",
        ),
        # There are no more broker groups than the settings allow.
        "groups without number": mutant(
            swap("plan_register", "len(registry.groups) >= groups_max", "False"),
            test="meta_server/wire/test_handlers.py::test_a_flood_of_groups_ends_at_the_limit",
        ),
        # There are no more subscriptions than the settings allow.
        "subscriptions without number": mutant(
            swap("Pusher.note", "self._sessions.uses >= self._limits.subscriptions_max", "False"),
            seed=2,
        ),
        # What was kept of a connection goes with it.
        "subscriptions of the gone": mutant(drop("Sessions.forget", "self.uses -= ..."), seed=1),
        # No more requests wait for the store than the settings allow.
        "a queue without end": mutant(
            swap("Committer.submit", "len(queue) >= self._waiting_max", "False"),
            test="meta_server/known/test_commits.py::test_an_intent_too_many_is_refused_at_once",
        ),
        # What a connection has asked for goes with it.
        "questions of the gone": mutant(
            drop("HeldRequests.forget", "self._waiting.pop(connection, None)"), seed=1
        ),
    },
    "8 rows": {
        # A row is replaced or removed only in the version that was expected.
        "memory compares no version": mutant(
            swap("Registry._change", "found != expected", "False"), test=_REGISTRY
        ),
        "the store compares no version": mutant(
            swap("meta_server.sql.store:_make", "result.rowcount != len(steps)", "False"),
            test=f"{_STORE}test_a_delay_group_is_replaced_by_epoch_and_version[sqlite]",
        ),
        # At most one row of a kind has a claim.
        "memory lets two rows have one claim": mutant(
            swap("Registry._change", "owner != key", "False"), test=_REGISTRY
        ),
        "the store lets two rows have one claim": mutant(
            swap(
                "meta_server.sql.store:_step_of", "None if claim is None else _json(claim)", "None"
            ),
            test=f"{_STORE}test_at_most_one_row_of_a_kind_has_a_claim_also_when_it_is_replaced[sqlite]",
        ),
        # Of a commit with a conflict nothing is kept.
        "memory keeps half a commit": mutant(
            drop("Registry.apply", "self._put(kind, key, before)"), test=_REGISTRY
        ),
        # A row that is found by something else than its key is found by what it has now.
        "a row is found by what it had": mutant(
            drop("_View.put", "del rows[key if self.is_index else one]"), test=_REGISTRY
        ),
    },
    "8 controls": {
        # No node is told of controls before the store has them.
        "controls before the store": mutant(
            before(
                "Committer._commit",
                _COMMIT,
                (
                    "early = [one for one in changes "
                    "if type(getattr(one, 'row', 0)).__name__ == 'ClusterControls']; "
                    "self._registry.apply(early); self._on_changed(early)"
                ),
            ),
            after(
                "Committer._commit",
                _COMMIT,
                "changes = tuple(one for one in changes if one not in early)",
            ),
            seed=2,
        ),
        # Every change of controls is stored with its entry in the audit.
        "controls without an entry in the audit": mutant(
            swap("Change.plan", "not planned.changes or any(...)", "True"), seed=1
        ),
        # Nodes are told of a change of controls within a second.
        "a change wakes nobody": mutant(
            swap("GroupChanges.changed", "model.ClusterControls", "model.DelayGroup"), seed=1
        ),
        # What another meta server has changed is told once it is loaded.
        "controls of a neighbour are not told": mutant(
            drop("MetaServer._loaded_anew", "self.handlers.held.changed()"),
            test="meta_server/groups/test_current_controls.py::"
            "test_what_the_store_did_not_keep_is_told_to_nobody",
        ),
        # A vote that is asked never waits for controls that do not fit beside it.
        "votes before controls": mutant(
            swap(
                "Watches._answer",
                "wire.encode_watch_reply(wire.WatchReply(news=news)), None",
                "wire.encode_watch_reply(wire.WatchReply(controls=controls)), controls",
            ),
            test="meta_server/groups/test_current_controls.py::"
            "test_a_vote_does_not_wait_for_controls_that_do_not_fit_beside_it",
        ),
        # A node is told the controls that there are, not those that others were told before.
        "the document of before": mutant(
            swap("CurrentControls.of", "made[0] is not row", "False"), seed=1
        ),
        # Weights are told with the rest.
        "weights are not told": mutant(
            swap(
                "document_of",
                "msgspec.structs.replace(...)",
                (
                    "msgspec.structs.replace(_, groups={n: "
                    "msgspec.structs.replace(r, weight=None) for n, r in controls.groups.items()})"
                ),
            ),
            seed=7,
        ),
        # Whoever waits for news is answered after a while that there are none.
        "a question without an answer": mutant(
            swap("HeldRequests.hold", "self._hold_s", "_ * 1e6"), seed=1
        ),
        # An operator is told by which controls each node goes.
        "what a node has is not noted": mutant(
            swap("GroupChanges.controls_at", "heard.node.controls", "type(heard.node.controls)()"),
            seed=1,
        ),
        # Only who has registered as a node is sent its cluster's controls.
        "controls for whoever asks": mutant(
            swap(
                "Watches.decide",
                "self._groups.registration_on(request.session)",
                "request.session.registration",
            ),
            seed=30,
        ),
        # A node that applies the controls already is not sent them again.
        "a document for each connection": mutant(
            swap("Watches._controls_for", "session.controls is None", "False"),
            test="meta_server/groups/test_current_controls.py::"
            "test_controls_that_a_node_applies_are_named_and_not_sent_again",
        ),
    },
}
"""Of the meta server."""
CLUSTER = {
    "8 following routes": {
        # Messages that wait go where the route leads that their subject has now.
        "waiting messages keep their route": mutant(
            drop("SubjectRoutes._set", "self.on_route_changed(...)"), seed=2
        ),
        # A group is where it was heard of last.
        "a group stays where it was": mutant(
            swap(
                "SubjectRoutes._note_masters", "... == group.master", "group.name in self._masters"
            ),
            test="delay_server/lanes/test_routes.py::"
            "test_a_group_with_another_address_is_reached_there",
        ),
        # A subject is asked for as long as its messages wait for a route.
        "who waits for a route is forgotten": mutant(
            swap("SubjectRoutes.round", "self.lanes.oldest_parked()", "used"),
            test="delay_server/lanes/test_routes.py::"
            "test_places_that_come_free_are_for_those_that_waited_longest_and_not_for_who_comes",
        ),
        # What waits on disk for a route comes from there when there is one.
        "what waits on disk stays in its lane": mutant(
            drop(
                "Parked.move",
                "self._moved.setdefault(lane, []).append(subject)",
            ),
            seed=1,
        ),
        # A group at what is no address is a group that cannot be reached, and no more.
        "no address, no server": mutant(
            drop("unreachable_if_no_address", "if fault:\n    ..."),
            swap("unreachable_if_no_address", "(ValueError, OverflowError)", "ZeroDivisionError"),
            seed=2,
        ),
        # What a meta server says of one group ends nothing, whatever it is.
        "an impossible address is an error": mutant(
            swap("_place_of", "AddressError", "ZeroDivisionError"), seed=2
        ),
    },
    "8 asking": {
        # On a new connection everything is asked anew: what was told before may be over.
        "routes of a lost connection are trusted": mutant(
            swap(
                "MetaSession.connected",
                "self._uses.values()",
                "(use for use in self._uses.values() if use.route is None)",
            ),
            seed=10,
        ),
        # A push changes a route as an answer does.
        "pushes are not heard": mutant(
            swap("MetaRoutes._take", "changed is not None", "_ and subject"), seed=1
        ),
        # A connection to a meta server that ends is made anew.
        "nobody connects again": mutant(
            swap("MetaRoutes.run", "trio.sleep(wait_s)", "trio.sleep_forever()"), seed=21
        ),
        # What is known of routes stays when no meta server answers.
        "no meta server, no routes": mutant(
            after(
                "MetaRoutes._converse",
                "self._session.disconnected(...)",
                (
                    "for use in self._session._uses.values():\n    use.route = None\n    "
                    "self._on_changed(use.subject)"
                ),
            ),
            test="delay_transport/meta/test_routes.py::"
            "test_what_is_no_meta_server_ends_the_connection_and_routes_stay",
        ),
    },
    "8 membership": {
        # A node that is told of another epoch than the one it began ends.
        "a later epoch is ignored": mutant(
            swap("Registration._hear", "raise FencedError(...)", "_log.warning(reason)"),
            test="delay_server/membership/test_registration.py::"
            "test_who_is_told_of_another_epoch_or_master_stops_at_once",
        ),
        # A node that is refused ends.
        "a refusal is ignored": mutant(
            swap(
                "Registration._take",
                "raise NodeRefusedError(...)",
                "raise MetaRefusedError(reply.reason)",
            ),
            test="delay_server/membership/test_registration.py::"
            "test_a_refusal_while_it_serves_ends_it_too",
        ),
        # A node registers at once when its state for producers changes.
        "a state waits for the next registration": mutant(
            drop("Registration.state_changed", "self.renew()"),
            test="delay_server/membership/test_registration.py::test_clients_are_told_that_the_disk_"
            "is_full_and_that_it_is_not_one_after_the_other[0.0-0.1]",
        ),
        # Each registration of a master has its state for producers.
        "a state is given when it changes": mutant(
            swap("Registration._said", "state.name", "None if self.shown else state.name"),
            test="delay_server/membership/test_registration.py::"
            "test_a_meta_server_that_restarts_is_found_again_long_before_the_lease_is_over",
        ),
        # A node that has lost its meta server looks for one again.
        "nobody registers again": mutant(
            swap("delay_server:Registration.run", "trio.sleep(...)", "trio.sleep_forever()"),
            test="delay_server/membership/test_registration.py::"
            "test_a_meta_server_that_restarts_is_found_again_long_before_the_lease_is_over",
        ),
    },
    "8 administration": {
        # A row is changed over the version that was expected, and over no other.
        "the version that is expected is not looked at": mutant(
            swap("Precondition.fault", "found != self.version", "False"),
            test="delay_transport/http/test_api.py::"
            "test_a_row_is_written_over_the_version_that_was_expected_and_no_other",
        ),
        # Who may read may not change.
        "readers change": mutant(
            swap("AccessPolicy._caller", "token.role.covers(...)", "True"),
            test="delay_transport/http/test_access.py",
        ),
    },
    "8 telling": {
        # When a group changes, or a setting, all are looked at whom it may concern.
        "pushes of single routes only": mutant(
            swap(
                "MetaServer._changed",
                "self.handlers.pusher.changed()",
                "self.handlers.pusher.changed([])",
            ),
            test="meta_server/admin/test_api.py::"
            "test_a_prefix_route_reaches_those_without_a_route_of_their_own",
        ),
        # A client of a retry subject is told of the routes of the real one.
        "a subscription by the wrong name": mutant(
            swap("Clients._subscribe", "routed", "request.body.subject"), seed=2
        ),
    },
    "8 controls": {
        # A node keeps its controls when it is told an older version of the same store.
        "older controls are believed": mutant(
            swap("why_kept", "told.version > present.version", "True"), seed=11
        ),
        # What is held back is not let go by the rules of another store.
        "another store opens": mutant(
            swap("why_kept", "present.groups or present.subjects", "False"), seed=4
        ),
        # What a node is told of controls is on its disk before it counts.
        "told controls are not kept": mutant(
            drop("ControlsStore.take", "write_controls(...)"), seed=1
        ),
        # Controls that come later are applied as the first ones are.
        "controls are applied once": mutant(
            swap("ControlsSync.run", "changed()", "return"), seed=1
        ),
        # On each connection to a meta server a node applies what it is sent.
        "controls of the first connection": mutant(
            swap(
                "Registration._renew",
                "nursery.start_soon(self._apply_controls)",
                "self.answers <= 1 and _",
            ),
            seed=6,
        ),
        # What a node is told of controls holds at once.
        "told controls wait for a start": mutant(
            swap("Node.have_controls", "self.take_controls is not None", "not told.version"),
            seed=1,
        ),
        # Groups have the weights that the meta server tells.
        "told weights are not heeded": mutant(
            swap("Outlet._follow", "rule.weight is not None", "False"), seed=2
        ),
    },
}
"""Of what is between the servers and broker groups."""

SCHEDULE = {
    "7 commit": {
        # A record is committed when all that are needed have it, and not most of them.
        "most disks are enough": mutant(
            swap(
                "InSyncSet._commit",
                "min(...)",
                "sorted([*(self._peers[one].acked for one in "
                "needed), self._commit_point.durable])[(len(needed) + 1) // 2]",
            ),
            seed=1,
        ),
        # The set that is proposed is needed beside the recorded one.
        "a smaller set counts when it is proposed": mutant(
            after(
                "InSyncSet.look",
                "self._proposed = self._wanted(now)",
                "if self._proposed:\n    self.record = Record(epoch=self.record.epoch, "
                "version=self.record.version, master=self.record.master, "
                "in_sync=self._proposed, min_isr=self.record.min_isr)",
            ),
            seed=1,
        ),
        # An acknowledgement counts for one disk, which a node may have lost.
        "another disk of a node counts": mutant(
            swap(
                "InSyncSet._peer",
                "self._peers.get(member)",
                "next((one for known, one in "
                "self._peers.items() if known.node == member.node), None)",
            ),
            seed=10,
        ),
        # A disk is taken in sync when it has what is committed, and the beginning of the epoch.
        "a disk is taken in sync early": mutant(
            swap("InSyncSet._wait_for", "peer.acked > self._start", "True"),
            swap("InSyncSet._wait_for", "peer.acked >= self._ends.at(now - NEAR_S)", "True"),
            swap("InSyncSet._wanted", "peer.acked >= self._commit_point.committed", "True"),
            swap("InSyncSet._wanted", "peer.acked > self._start", "True"),
            seed=7,
        ),
        # Nothing is committed by acknowledgements of less than the beginning of the epoch.
        "a commit below the beginning of an epoch": mutant(
            swap("InSyncSet._commit", "end > self._start", "True"),
            test="replication/core/test_in_sync.py",
        ),
        # The in-sync set never gets smaller than min_isr.
        "smaller than min_isr": mutant(
            swap(
                "InSyncSet._wanted",
                "record.min_isr <= len(fit) < len(record.in_sync)",
                "fit != record.in_sync",
            ),
            swap("GroupState.why_not", "len(wanted) < record.min_isr", "False"),
            seed=15,
        ),
        # A disk that answers and gets no further is dropped.
        "who answers is in sync": mutant(
            swap("Progress.told", "self.reached >= end", "True"),
            test="replication/core/test_in_sync.py",
        ),
        # Commits wait for a disk that is nearly there, so that it gets there.
        "nobody is waited for": mutant(
            swap("InSyncSet.needed", "one.waited_since is not None", "False"),
            test="replication/core/test_in_sync.py",
        ),
        # What may not be acknowledged is not appended.
        "a survivor appends": mutant(
            swap("InSyncSet.why_not_append", "len(heard) + 1 >= record.min_isr", "True"),
            test="replication/core/test_in_sync.py",
        ),
    },
    "7 following": {
        # A log is cut by (epoch, end) as the master has it, and not to the commit.
        "cut to the commit": mutant(
            swap(
                "Follower.diverges",
                "Cut(answer.epoch, answer.end)",
                "Cut(answer.question.epoch, self.committed)",
            ),
            seed=2,
        ),
        # A log matches where the epoch of its last record is the same.
        "a log of the same length matches": mutant(
            swap("Epochs.answer", "self.before(question.sequence) == question.epoch", "True"),
            seed=2,
        ),
        # What is committed counts as far as the log is known to be the same.
        "a commit counts before the log matches": mutant(
            swap("Follower._count", "min(self._told, self._verified)", "self._told"),
            test="replication/core/test_follower.py",
        ),
        # An answer counts for its question alone: the log may have matched since.
        "an answer to another question counts": mutant(
            drop("Follower._require_asked", "if question != self._asked: ..."),
            test="replication/core/test_follower.py",
        ),
        # Batches go on from the end of the log.
        "a gap is appended": mutant(
            drop("Follower.batches", "if first not in {behind, self._next}: ..."),
            test="replication/core/test_follower.py",
        ),
    },
    "7 elections": {
        # Only a disk in sync votes.
        "a wiped disk votes": mutant(
            swap(
                "GroupState.voted",
                "record.in_sync.get(node) != vote.storage",
                "node not in record.in_sync",
            ),
            seed=10,
        ),
        "anybody votes": mutant(
            swap("GroupState.voted", "record.in_sync.get(node) != vote.storage", "False"),
            swap("GroupState.asks", "record.in_sync", "self.heard"),
            seed=2,
        ),
        # The longest log becomes the master.
        "the shortest log": mutant(
            swap(
                "GroupState.choose",
                "max(...)",
                "min(self.votes, key=lambda node: self.votes[node].vote.end)",
            ),
            test="meta_server/groups/test_elections.py",
        ),
        # A vote is a promise: no earlier master is followed.
        "an earlier master is followed": mutant(
            swap("Voter.may_follow", "epoch >= self.promise.epoch", "True"),
            test="replication/core/test_voter.py",
        ),
        # Who voted is in sync, and who did not may lack what others have.
        "who did not vote stays in sync": mutant(
            swap(
                "GroupState.choose",
                "{node: vote.storage for node, vote in self.votes.items() if ...}",
                "dict(record.in_sync)",
            ),
            test="meta_server/groups/test_elections.py",
        ),
        # Who is fit goes before the length of logs.
        "an unfit one with a longer log is elected": mutant(
            swap(
                "GroupState.choose",
                "(fits[node].rank, _rank(...))",
                "_rank(node, self.votes[node].vote)",
            ),
            test="meta_server/groups/test_elections.py",
        ),
        # A clock that is wrong excludes.
        "who is excluded is elected": mutant(
            swap("GroupState.choose", "not any(...)", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # A master that ends soon after its start has the longest log each time.
        "who was elected again and again stays first": mutant(
            swap("GroupState.fitness", "times >= ELECTED_MAX", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # Nobody waits for a master that stops.
        "an unfit master stays in the set": mutant(
            swap("GroupState.hand_over", "own.rank in _LEAVES", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # The set never gets smaller than min ISR.
        "an unfit master leaves whatever is left": mutant(
            swap("GroupState.hand_over", "len(in_sync) > record.min_isr", "True"),
            test="meta_server/groups/test_elections.py",
        ),
        # The group is not handed on to a member that is unfit as well.
        "an unfit member takes over": mutant(
            swap("GroupState.ask_to_hand_over", "{Rank.UNFIT, Rank.EXCLUDED}", "set()"),
            test="meta_server/groups/test_elections.py",
        ),
        # A proposal is for one version of the record.
        "an old proposal comes true": mutant(
            swap("_check_present", "(record.epoch, record.version) != pair", "False"),
            seed=3,
        ),
    },
    "7 silence": {
        # A master is not replaced while somebody hears it as one that may send.
        "a master that slaves hear is replaced": mutant(
            swap("GroupState.why_begin", "self.may_send(record, now=now)", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # No election begins in which nobody could vote.
        "an election that nobody votes in": mutant(
            swap("GroupState.why_begin", "not any(...)", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # A master that cannot send for want of promises makes room for another one.
        "a blocked master stays": mutant(
            swap("Heard.blocked_s", "lacks_s is None", "True"),
            test="simulation/schedule/test_schedule.py::"
            "test_a_master_cut_off_from_its_slaves_alone_makes_room_and_stays_out",
        ),
        # Not again and again.
        "a blocked master is deposed at once again": mutant(
            swap("GroupState._why_depose", "now - self.changed_at < BLOCKED_AGAIN_S", "False"),
            test="meta_server/groups/test_elections.py",
        ),
        # The deposed one is elected last.
        "the deposed one is elected": mutant(
            swap(
                "GroupState.choose",
                "max(...)",
                "max(self.votes, key=lambda node: _rank(node, self.votes[node].vote))",
            ),
            test="meta_server/groups/test_elections.py",
        ),
        # A master whose disk hangs makes room: it could not hand over.
        "a master whose disk hangs stays": mutant(
            swap("InSyncSet.hangs", "now - since <= FSYNC_S_MAX", "True"),
            test="replication/core/test_master.py",
        ),
        # Whatever a commit waits for: the fsync of what came before it may hang.
        "only an fsync of its own hangs": mutant(
            swap("Committer._commit", "self._replicas.committing()", "nullcontext()"),
            test="failover/test_fitness.py::test_a_master_whose_fsync_hangs_gives_its_role_up",
        ),
        # Time in which the meta server stood still is nobody's silence.
        "a standstill is silence": mutant(
            drop("GroupState.stood_still", "self.heard = ..."),
            test="meta_server/groups/test_elections.py",
        ),
        # A slave that is silent is dropped where nothing is written, too.
        "silence in an idle group": mutant(
            swap("InSyncSet._fault", "now - peer.heard_at > SILENT_S_MAX", "False"),
            test="replication/core/test_in_sync.py",
        ),
    },
    "7 promises": {
        # Nothing is sent without the promises of all that may be elected.
        "sent without promises": mutant(
            swap("Master.why_not_act", "not unpromised", "True"),
            seed=1,
        ),
        # Whom a proposal makes electable has promised, too.
        "who is proposed need not promise": mutant(
            swap("InSyncSet._wanted", "peer.lease_until > now + PROMISED_S", "True"),
            test="replication/core/test_in_sync.py",
        ),
        # A slave votes when its promise to the master it heard has run out.
        "a promise to a master is forgotten": mutant(
            swap("Voter.asked", "wait_s > 0", "False"),
            test="replication/core/test_voter.py",
        ),
        # A start promises nothing away that it may have promised before it.
        "a start votes at once": mutant(
            swap("FollowerPromise.__init__", "now + FOLLOWER_LEASE_S * (1 + DRIFT)", "now"),
            test="replication/core/test_master.py",
        ),
        # What was promised to a start that is gone is void.
        "a start that is gone is waited for": mutant(
            swap("FollowerPromise.asked_to_vote", "gone >= self._epoch", "False"),
            test="replication/core/test_master.py",
        ),
        # One that still speaks is not gone.
        "a master that speaks is gone": mutant(
            swap("FollowerPromise.asked_to_vote", "self.still_hears(gone, now)", "False"),
            test="replication/core/test_master.py",
        ),
        # Who was asked to vote promises nothing more to the present master.
        "promises go on while a vote is asked for": mutant(
            swap("FollowerPromise.heard", "self._wanted_epoch > epoch", "False"),
            test="replication/core/test_master.py",
        ),
        # The master counts a slave's promise from before it was given.
        "a promise counts from when it is told": mutant(
            swap(
                "Peer.acknowledged",
                "echo + FOLLOWER_LEASE_S * (1 - DRIFT)",
                "now + FOLLOWER_LEASE_S + 1",
            ),
            seed=3,
        ),
    },
    "7 outcomes": {
        # The best other member is the one that would take over.
        "sending pauses for the worst": mutant(
            swap("InSyncSet.best_end", "max(...)", "min(ends, default=0)"),
            test="replication/core/test_master.py",
        ),
    },
    "7 handover": {
        # The other node has everything before it is the master.
        "handed over too early": mutant(
            swap("Handover.look", "target_end == end == committed", "True"),
            test="replication/core/test_master.py",
        ),
        # Once the meta server was asked nothing is done under the old epoch.
        "a master goes on that handed over": mutant(
            swap("Master.why_not_act", "self.handover.has_asked", "False"),
            swap("Master.why_not_send", "self.handover is not None", "False"),
            swap("Master.why_not_append", "self.handover is not None", "False"),
            test="replication/core/test_master.py",
        ),
        # Where the other does not get there the master goes on.
        "a handover waits for ever": mutant(
            swap("Handover.heard", "self._late(now) <= TARGET_S_MAX", "True"),
            test="replication/core/test_master.py",
        ),
    },
}
"""Of the core of replication; its world is a schedule of events."""

GROUP = {
    "7 copies": {
        # A slave acknowledges what is durable on its disk.
        "acknowledged before it is durable": mutant(
            before(
                "Following._append",
                "data = ...",
                "self._connection.tell(CommandCode.ACK, encode_acknowledged(Acknowledged("
                "end=self._follower._next, applied=copy.applied(), echo_ms=None)))",
            ),
            test=f"{_FAILOVER}test_a_slave_acknowledges_what_is_durable_on_its_disk",
        ),
        # What is copied is fsynced.
        "copied without fsync": mutant(
            swap(
                "MessageLog.append_copied",
                "self.sync_written()",
                "sync, self._tail.sync = self._tail.sync, lambda: None\n"
                "try:\n    self.sync_written()\nfinally:\n    self._tail.sync = sync",
            ),
            seed=1,
        ),
        # After a cut all in memory is made anew.
        "a cut after which nothing is opened anew": mutant(
            swap("Following._other_log", "FollowEnd.CHANGED", "FollowEnd.AGAIN"),
            test=f"{_FAILOVER}test_a_slave_that_was_cut_while_it_ran_files_what_its_new_master_has",
        ),
        # Producers hear at once of a master that has handed over.
        "held by a slave": mutant(
            drop("Registration._hear", "self._on_changed()"),
            test=f"{_FAILOVER}test_a_master_that_hands_over_says_at_once_who_takes_messages_now",
        ),
        # Nothing goes on from a log that was cut, whatever comes in between.
        "a cut is forgotten": mutant(
            drop("Replica._cut", "self._is_cut = True"),
            test="failover/test_roles.py::"
            "test_a_cut_in_the_middle_of_which_the_master_changes_is_not_forgotten",
        ),
        # What the master has not is cut, whatever a start has applied of it.
        "a start applies its tail": mutant(
            swap("Replica.until_master", "point.committed", "store.message_log.next_sequence"),
            test=f"{_FAILOVER}test_the_tail_that_no_other_disk_has_is_cut",
        ),
        # It is filed up to there, wherever that lies in what came at once.
        "batches that came at once are one step": mutant(
            swap("Following._append", "for batch in batches: ...", "copy.queue.add(batches)"),
            test=f"{_FAILOVER}"
            "test_a_slave_files_up_to_a_commit_between_two_batches_that_came_at_once",
        ),
        # What is durable at a slave is filed when the master has told that it is committed.
        "a slave files what is not committed": mutant(
            swap("Following._committed", "self._follower.committed", "copy.log.next_sequence"),
            test=f"{_FAILOVER}test_a_slave_files_what_is_committed_and_nothing_else",
        ),
        # What is read from the log again is committed as well.
        "read beyond the commit": mutant(
            swap("CommitQueue._readable_until", "min(until, ...)", "until"),
            test="delay_server/accepting/test_commits.py::"
            "test_of_what_a_log_had_before_only_what_is_committed_is_read_again",
        ),
        # The bytes before the end are compared, and not their epoch alone.
        "other bytes of the same epoch match": mutant(
            swap("Questions._compare", "crc != asked.crc", "False"),
            test=f"{_FOLLOWING}test_bytes_that_differ_at_one_place_of_one_epoch_are_no_match",
        ),
        # A master that takes back what slaves have is the master no more.
        "it goes on after it took back": mutant(
            drop("Leading.took_back", "self._is_over = True"),
            drop("Leading.took_back", "self._asks.lose(...)"),
            test=f"{_FAILOVER}test_a_master_that_takes_back_what_slaves_have_is_the_master_no_more",
        ),
        # A slave of another epoch is told so.
        "a slave of another epoch follows": mutant(
            swap("Questions.why_not", "follow.epoch > epoch", "False"),
            swap("Questions.why_not", "follow.epoch < epoch", "False"),
            test=f"{_FOLLOWING}test_whoever_does_not_belong_here_does_not_follow",
        ),
        # Only the start that is registered follows.
        "a start of before follows": mutant(
            swap("_why_no_member", "start != ...", "False"),
            test=f"{_FOLLOWING}test_whoever_does_not_belong_here_does_not_follow",
        ),
    },
    "7 roles": {
        # The set changes when the meta server has said so.
        "the set shrinks before the answer": mutant(
            before(
                "Replica.change_record",
                "reply = await registration.change(...)",
                "if isinstance(wanted, Proposal):\n"
                "    leading.recorded(record_of(msgspec.structs.replace(self.record, "
                "epoch=wanted.epoch, version=wanted.version + 1, "
                "in_sync={one.node: one.storage for one in wanted.in_sync})))",
            ),
            test=f"{_FAILOVER}test_a_master_that_is_cut_off_sends_nothing_and_another_one_takes_over",
        ),
        # Nothing is sent without promises.
        "a node sends without promises": mutant(
            swap("Leading.may_act", "not reason", "True"),
            swap("Leading.look", "master.why_not_send(now)", "''"),
            test=f"{_FAILOVER}test_a_master_that_is_cut_off_sends_nothing_and_another_one_takes_over",
        ),
        # A promise is durable before anybody hears of it.
        "a vote before the promise is durable": mutant(
            drop("Replica._vote", "await self._keep(answer, self._kept)"),
            drop("Replica._take_news", "if told != self._kept: ..."),
            test=f"{_FOLLOWING}test_a_vote_that_has_come_is_a_promise_that_is_durable",
        ),
        # A survivor appends nothing that it may not acknowledge.
        "a survivor takes messages": mutant(
            swap("duty_of", "may_serve and not now.appends_wait", "may_serve"),
            test="delay_server/test_duty.py::test_the_table_holds",
        ),
        # A wiped disk is not in sync, whatever node it is in.
        "a wiped disk keeps its place": mutant(
            swap("GroupState.voted", "record.in_sync.get(node) != vote.storage", "False"),
            swap("GroupState.fitness", "storage is None or ...", "False"),
            swap("GroupState._was_heard_lately", "found.node.storage_uuid == storage", "True"),
            swap(
                "Watches._news_of",
                "record.in_sync.get(...) == node.storage_uuid",
                "True",
            ),
            swap(
                "DelayGroup.has_in_sync",
                "self.record.in_sync.get(node.node_id) == node.storage_uuid",
                "node.node_id in self.record.in_sync",
            ),
            test=f"{_FAILOVER}test_an_empty_disk_in_the_place_of_one_in_sync_is_not_in_sync",
        ),
        # A slave with damage says so, and is dropped.
        "a slave keeps its damage to itself": mutant(
            swap("Following._acknowledge_again_and_again", "self._copy.damage()", "''"),
            test=f"{_DAMAGE}test_damage_that_nobody_reads_is_found_and_no_master_inherits_it",
        ),
        # Nobody gives up what the group counts on.
        "a disk in sync is given up": mutant(
            swap("Replica.copies_anew", "not self.is_counted", "True"),
            test=f"{_DAMAGE}test_who_is_needed_stays_and_says_so_and_copies_anew_when_it_is_not",
        ),
        # A copy is as whole as its master.
        "damage of the master is copied again and again": mutant(
            swap("Damages.note", "damage.path not in self._copied", "True"),
            test=f"{_DAMAGE}"
            "test_what_is_damaged_at_the_master_too_is_copied_once_and_the_rest_stays_aside",
        ),
        # A second directory under the id of a node that lives is refused, but for its successor.
        "any directory takes the place of a living one": mutant(
            swap("_check_identity", "request.replaces != known.storage_uuid", "False"),
            test="meta_server/groups/test_roles.py",
        ),
        # A start of the recorded master's disk begins an election.
        "a master that was started again is waited for": mutant(
            swap(
                "GroupState.was_restarted", "found.node.incarnation > master.incarnation", "False"
            ),
            test="meta_server/groups/test_elections.py",
        ),
        # A master that is unfit is asked to hand over.
        "an unfit master is not asked": mutant(
            swap("GroupState.must_hand_over", "not why", "True"),
            test="failover/test_fitness.py",
        ),
        # A stop begins with a handover.
        "a stop hands nothing over": mutant(
            swap("DelayServer.hand_over_first", "leading.follow", "False"),
            test="failover/test_fitness.py",
        ),
        # One that may not send is not asked, and deposed.
        "a master that may not send is asked": mutant(
            swap("GroupState.must_hand_over", "stands.lacks_promises_s is None", "True"),
            test="meta_server/groups/test_elections.py",
        ),
        # Another reason, or another epoch, is another wish.
        "one wish for all reasons": mutant(
            swap("GroupState.must_hand_over", "asked == (record.epoch, why)", "bool(self.wish.to)"),
            test="meta_server/groups/test_elections.py",
        ),
        # A clock that is wrong for a moment is no reason.
        "a clock that was set hands over": mutant(
            swap("why_unfit", "now.clock_wrong_s >= LASTS_S", "now.clock_wrong_s > 0"),
            test="delay_server/test_fitness.py",
        ),
    },
    "6 receivers": {
        # What a master before it moved or gave up is not what this one moves or gives up.
        "a record of the master before lets go": mutant(
            swap("UnfiledRecords.filed", "np.array_equal(...)", "True"),
            test="delay_server/filing/test_unfiled.py",
        ),
        # What takes the place of a message needs as many disks as any other.
        "put off with too few replicas": mutant(
            swap("Receivers._settle", "self._duty().appends_wait", "''"),
            test="failover/test_receivers.py",
        ),
    },
    "8 changes": {
        "a master sends what was cancelled": mutant(
            swap("Cancelling._gone", "one in self._minutes", "False"), seed=1
        ),
        # What a master before it took is no new message.
        "a master that takes over knows no repeats": mutant(
            swap("Duplicates.catch_up", "self._note(header, columns)", "None"), seed=3
        ),
    },
}
"""Of the shell of replication, between servers; its world is the story of a group."""

MUTANTS = tuple(
    replace(one, world=world, section=section, name=name)
    for world, sections in (
        ("server", SERVER),
        ("meta", META),
        ("cluster", CLUSTER),
        ("schedule", SCHEDULE),
        ("group", GROUP),
    )
    for section, mutants in sections.items()
    for name, one in mutants.items()
)
"""Of all worlds, in the order of the design."""
