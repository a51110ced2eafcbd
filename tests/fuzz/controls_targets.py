"""Targets for what an operator closes and narrows, as it is sent, and for files of documents."""

import zlib
from typing import Final

import msgspec

from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.controls import (
    Controls,
    ControlsError,
    GroupControl,
    SubjectControl,
    SubjectRules,
    check_controls,
    check_group_name,
    check_pattern,
    decode_controls,
    decode_rule,
    document_of,
    encode_controls,
    id_of,
)
from delay_protocol.nodes.group_changes import read_document
from delay_server.controls.controls_store import read_controls, write_controls
from delay_server.controls.meta_sync import why_kept
from storage.batch.batches import log_seed
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.state.controls_file import CONTROLS_PATH
from storage.state.document_file import DocumentFile
from storage.state.promise_file import PROMISE_PATH, Promised, PromiseFile
from tests.fuzz.memory_disk import MemoryDisk
from tests.fuzz.target import attempt, byte_at, fault_of, target
from tests.storage.small_logs import LOG_UUID

_BODY_AT: Final = FILE_HEADER_SIZE + 8


@target(
    decoders=(decode_controls, decode_rule, check_controls, check_pattern, check_group_name),
    packages=("delay_protocol.nodes.controls",),
)
def controls(data: bytes) -> None:
    """A document or a rule is what was written, or refused with a sentence."""
    body = data[1:]
    match byte_at(data, 0) % 4:
        case 0:
            found = attempt(ControlsError, decode_controls, body)
            if found is not None:
                check_controls(found)
                assert decode_controls(encode_controls(found)) == found
                _check_rules(found)
        case 1:
            fault = fault_of(ControlsError, decode_rule, body, SubjectControl)
            assert fault is None or fault.reason
        case 2:
            fault = fault_of(ControlsError, decode_rule, body, GroupControl)
            assert fault is None or fault.reason
        case _:
            _names(body.decode(errors="surrogateescape"))


def _check_rules(found: Controls) -> None:
    """Every rule counts for the subject that it is named after, unless another is nearer."""
    rules = SubjectRules(found.subjects)
    for pattern in found.subjects:
        counts = rules.pattern_of(pattern.removesuffix("*"))
        assert counts == pattern or pattern.endswith("*")
        assert counts is None or counts in found.subjects


def _names(text: str) -> None:
    """A name that is taken can be stored and is found again."""
    paused = SubjectControl(paused=True)
    fault = fault_of(ControlsError, check_pattern, text)
    after = attempt(ControlsError, Controls().with_subject, text, paused)
    assert (fault is None) is (after is not None)
    if after is not None:
        assert decode_controls(encode_controls(after)).subjects == {text: paused}
    fault = fault_of(ControlsError, check_group_name, text)
    grouped = attempt(ControlsError, Controls().with_group, text, GroupControl(weight=2.0))
    assert (fault is None) is (grouped is not None)
    if grouped is not None:
        assert decode_controls(encode_controls(grouped)) == grouped


@target(
    decoders=(read_controls, DocumentFile.read, decode_controls),
    packages=(
        "delay_server.controls.controls_store",
        "storage.state.document_file",
        "delay_protocol.nodes.controls",
    ),
)
def controls_file(data: bytes) -> None:
    """A file of controls is what was written, or refused as damaged: never taken for no rules."""
    for image in (data, _mended(data, LogKind.CONTROLS)):
        disk = MemoryDisk({CONTROLS_PATH: image})
        found = attempt((DamagedError, UnsupportedFormatError), read_controls, disk, LOG_UUID)
        if found is not None:
            assert decode_controls(image[_BODY_AT:]) == found
            again = MemoryDisk()
            write_controls(again, LOG_UUID, found)
            assert read_controls(again, LOG_UUID) == found


@target(
    decoders=(PromiseFile.read,),
    packages=("storage.state.document_file", "storage.state.promise_file"),
)
def promise_file(data: bytes) -> None:
    """A promise is what was written, or refused as damaged: never taken for none."""
    for image in (data, _mended(data, LogKind.PROMISE)):
        disk = MemoryDisk({PROMISE_PATH: image})
        read = PromiseFile(disk, LOG_UUID).read
        found = attempt((DamagedError, UnsupportedFormatError), read)
        if found is not None:
            assert found == msgspec.json.decode(image[_BODY_AT:], type=Promised)
            again = PromiseFile(MemoryDisk(), LOG_UUID)
            again.write(found)
            assert again.read() == found


def _mended(data: bytes, kind: LogKind) -> bytes:
    """Return the file that has this document."""
    header = encode_file_header(FileHeader(kind=kind, log_uuid=LOG_UUID))
    crc = zlib.crc32(data, log_seed(LOG_UUID, kind))
    return b"".join((header, len(data).to_bytes(4, "little"), crc.to_bytes(4, "little"), data))


@target(
    decoders=(decode_controls, read_document),
    packages=("delay_protocol.nodes.controls", "delay_protocol.nodes.group_changes"),
)
def sent_controls(data: bytes) -> None:
    """A document is read back with its name, and opens nothing that is shut."""
    sent = attempt(ControlsError, decode_controls, data)
    named = None if sent is None else id_of(sent)
    if sent is None or named is None:
        return
    document = attempt(ControlsError, document_of, sent, named.store)
    if document is None:
        return
    assert read_document(document, named) == sent
    other = msgspec.structs.replace(named, crc=named.crc ^ 1)
    assert fault_of(MalformedMetaError, read_document, document, other) is not None
    assert not why_kept(Controls(), sent)
    shut = Controls(subjects={"*": SubjectControl(paused=True)})
    assert why_kept(shut, sent)
