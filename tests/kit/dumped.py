"""What `delaywheel log dump` shows of a data directory, record by record."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from storage.tools.inspect import dump_files


def records_of(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a record for each of a dump's batches, with the values of its columns."""
    for line in lines:
        for place in range(line.get("count", 0)):
            record = {name: values[place] for name, values in line["columns"].items()}
            for name in {"subject", "reason"} & record.keys():
                record[name] = line["names"][record[name]]
            if "message_ids" in line:
                record["message id"] = line["message_ids"][place]
            own = {name: line[name] for name in ("file", "kind", "epoch")}
            yield own | {"sequence": line["first"] + place} | record


def messages_in(data: Path) -> list[str]:
    """Return the ids of all messages in a directory's message_log, in its order."""
    lines: Iterator[Mapping[str, Any]] = dump_files(data / "message_log")
    return [name for line in lines if line.get("kind") == "MESSAGE" for name in line["message_ids"]]
