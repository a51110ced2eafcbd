"""Dead letters as they are shown: JSON values."""

from typing import Any

import msgspec

from delay_protocol.basics.errors import ProtocolError
from delay_protocol.basics.subjects import real_subject
from delay_protocol.messages.items import decode_item
from delay_protocol.messages.origin import APP_KEY, TIMES_KEY, count_of, first_due_ms
from delay_server.dead.reason import code_name, decode_reason
from storage.readers.dead_reader import DeadItem
from storage.schedule.dead_index import DeadRow

Json = dict[str, Any]


def shown_letter(row: DeadRow, found: DeadItem, *, is_whole: bool = False) -> Json:
    """Return what is known of a dead letter; is_whole: with its item's fields."""
    shown: Json = {
        "sequence": row.sequence,
        "subject": real_subject(row.subject).decode(errors="replace"),
        "due_ms": row.due_ms,
        "dead_ms": row.dead_ms,
        "size_bytes": row.size,
        "of_sequence": row.old_sequence,
    }
    if found.fault:
        shown["fault"] = found.fault
    if found.item is not None:
        shown |= _fields_of(found.item, is_whole=is_whole)
    reason = decode_reason((found.reason or "").encode())
    if reason is None:
        return shown | {"reason": found.reason}
    if "attempt" in shown:
        shown["attempt"] += reason.tries
    refusals = [_named(msgspec.structs.asdict(one)) for one in reason.refusals]
    return shown | _named(msgspec.structs.asdict(reason)) | {"refusals": refusals}


def _fields_of(data: bytes, *, is_whole: bool) -> Json:
    try:
        item = decode_item(data)
    except ProtocolError as error:
        return {"fault": str(error)}
    if not is_whole:
        return {"message_id": item.message_id}
    return {
        "message_id": item.message_id,
        "create_ms": item.create_ms,
        "flag": item.flag,
        "first_due_ms": first_due_ms(item),
        "app_code": item.attributes.get(APP_KEY, ""),
        # The tries that failed before this mastership.
        "attempt": count_of(item.attributes, TIMES_KEY),
        "tags": list(item.tags),
        "attributes": dict(item.attributes),
    }


def _named(refusal: Json) -> Json:
    return refusal | {"code_name": code_name(refusal["code"])}
