"""Subjects that a real-time broker would refuse are told apart from those it takes."""

import pytest

from delay_protocol.basics.subjects import real_subject, subject_fault
from tests.fuzz.reference import BREAKING_WHITESPACE


@pytest.mark.parametrize("illegal", ["/", *BREAKING_WHITESPACE])
def test_a_slash_or_breaking_whitespace_anywhere_is_refused(illegal: str) -> None:
    for subject in (illegal, f"{illegal}a", f"a{illegal}b", f"a{illegal}", f"%RETRY%a%{illegal}g"):
        assert subject_fault(subject.encode()) is not None


@pytest.mark.parametrize("subject", ["a", "a.b-c_d", "%RETRY%a.b%g", "%DEAD_RETRY%a%g", "\u822a"])
def test_ordinary_and_retry_subjects_are_taken(subject: str) -> None:
    assert subject_fault(subject.encode()) is None


@pytest.mark.parametrize(
    "space", ["\u00a0", "\u2007", "\u202f", "\u200b", "\ufeff", "\x1f", "\x00"]
)
def test_no_break_spaces_and_what_guava_does_not_call_breaking_are_taken(space: str) -> None:
    assert subject_fault(f"a{space}b".encode()) is None


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        (b"", "empty"),
        (b"a\xff", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"\xc0\xaf", "not UTF-8"),
        (b"a/b", "contains '/'"),
        (b"a\r\n", "contains '\\r'"),
        ("a\u3000".encode(), "contains '\\u3000'"),
        (b"%", "begins with '%' and is no retry, %RETRY%SUBJECT%GROUP"),
    ],
)
def test_the_fault_is_told_in_plain_ascii(subject: bytes, fault: str) -> None:
    assert subject_fault(subject) == fault


@pytest.mark.parametrize(
    "subject",
    ["%", "%a", "%DLQ%billing", "%RETRY%a", "%RETRY%%g", "%RETRY%a%", "%X%a%g"],
)
def test_a_name_that_begins_with_a_percent_sign_is_a_retry_or_none(subject: str) -> None:
    assert "begins with '%'" in str(subject_fault(subject.encode()))
    assert subject_fault(subject.removeprefix("%").encode() or b"a%") is None


@pytest.mark.parametrize(
    ("subject", "real"),
    [
        (b"a.b", b"a.b"),
        (b"", b""),
        (b"%RETRY%a.b%g", b"a.b"),
        (b"%DEAD_RETRY%a.b%g", b"a.b"),
        # A subject of another shape is its own, as QMQ has it.
        (b"%RETRY%a.b", b"%RETRY%a.b"),
        (b"%RETRY%%g", b"%RETRY%%g"),
        (b"%RETRYX%a%b%g", b"%RETRYX%a%b%g"),
        # But one that has the sign inside.
        (b"%RETRY%a%b%g", b"a%b"),
        (b"%DEAD_RETRY%a%b%c%g", b"a%b%c"),
        (b"%RETRY%%RETRY%a%g%h", b"%RETRY%%RETRY%a%g%h"),
        (b"%RETRY%a%b%", b"a"),
        (b"%RETRY%a%%g", b"a%"),
        (b"%OTHER%a%g", b"%OTHER%a%g"),
        (b"a%b%c", b"a%b%c"),
    ],
)
def test_the_real_subject_is_the_middle_part_of_a_retry_subject(
    subject: bytes, real: bytes
) -> None:
    assert real_subject(subject) == real
