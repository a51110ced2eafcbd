"""The contents of messages and dead letters, read and checked where it is asked for.

Nothing else of a run needs it. What is damaged there takes no accepted row, and no fact of one,
away, so it changes no figure: the input is not complete.
"""

from dataclasses import dataclass
from itertools import chain

from spark_tools.files.columns import sift
from spark_tools.judge.account import Account, TaskResult
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.tasks import Extent, LogRange, Node
from storage.batch.batches import Damage
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.readers.arrow import ArrowReader, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadTask:
    """Check the items of one file: their CRCs, and those of their batches.

    Of a segment of dead letters their notes and facts as well, which nothing else reads.
    """

    node: Node
    file: Extent | LogRange

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return self.file.length

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        account, damages = Account(), list[Damage]()
        node, file = self.node, self.file
        if isinstance(file, Extent):
            is_dead = file.start >= DEAD_MINUTES_FROM
            reader = self._reader(Kind.DEAD if is_dead else Kind.SCHEDULE)
            found = reader.rows(file.file, length=file.length)
            if is_dead:
                facts = self._reader(Kind.DISPATCH)
                found = chain(found, facts.filed_facts(file.facts_file, length=file.facts_length))
        else:
            reader = self._reader(Kind.MESSAGE)
            found = reader.messages(
                file.file,
                length=file.length,
                first_sequence=file.first_sequence,
                next_sequence=file.next_sequence,
            )
        for _ in sift(found, damages):
            pass  # What is read is checked; nothing of it is kept.
        account.damages = {(node.node_id, damage) for damage in damages}
        if reader.bad_items:
            text = f"{file.file}: {reader.bad_items} item(s) are not what their rows say"
            account.problems.add((node.node_id, text))
        return TaskResult(node.name, account, FindingsMaker.nothing())

    def _reader(self, kind: Kind) -> ArrowReader:
        node = self.node
        return ArrowReader(node.disk(), node.log_uuid, kind, ["sequence"], check_items=True)
