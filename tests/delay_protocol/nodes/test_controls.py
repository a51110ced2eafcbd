"""What an operator closes: one document, one rule for each subject, and nothing else is taken."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.controls import (
    CONTROLS_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    GROUP_RULES_MAX,
    PATTERN_BYTES_MAX,
    SUBJECT_RULES_MAX,
    Controls,
    ControlsError,
    GroupControl,
    SubjectControl,
    SubjectRules,
    decode_controls,
    document_of,
    encode_controls,
    id_of,
)
from delay_protocol.nodes.group_changes import read_document

PAUSED = SubjectControl(paused=True)
OPEN = SubjectControl()
NAMES = st.text("ab.*", max_size=5)
RULES = st.builds(SubjectControl, paused=st.booleans())


def plain_pattern_of(patterns: set[str], subject: str) -> str | None:
    """Return what the module's docstring says, in plain words."""
    if not subject.endswith("*") and subject in patterns:
        return subject
    prefixes = [p for p in patterns if p.endswith("*") and subject.startswith(p[:-1])]
    return max(prefixes, key=len, default=None)


@given(st.dictionaries(NAMES.filter(bool), RULES), NAMES)
def test_exact_comes_before_the_longest_prefix(
    rules: dict[str, SubjectControl], subject: str
) -> None:
    assert SubjectRules(rules).pattern_of(subject) == plain_pattern_of(set(rules), subject)


@given(
    st.dictionaries(NAMES.filter(bool), RULES),
    st.dictionaries(
        NAMES.filter(bool),
        st.builds(GroupControl, paused=st.booleans(), weight=st.none() | st.floats(0.001, 1000)),
    ),
    st.integers(0, 2**62),
)
def test_a_document_survives_its_encoding(
    subjects: dict[str, SubjectControl], groups: dict[str, GroupControl], version: int
) -> None:
    controls = Controls(version=version, subjects=subjects, groups=groups)
    assert decode_controls(encode_controls(controls)) == controls


def test_each_change_counts_the_version_and_leaves_the_document_before_it_as_it_was() -> None:
    first = Controls()
    second = first.with_subject("a", PAUSED)
    third = second.with_group("g1", GroupControl(paused=True))
    assert (first, second.version, third.version) == (Controls(), 1, 2)
    assert third == Controls(
        version=2, subjects={"a": PAUSED}, groups={"g1": GroupControl(paused=True)}
    )
    assert third.with_subject("a", None).with_group("g1", None) == Controls(version=4)
    assert second.subjects == {"a": PAUSED}


def test_an_open_rule_stays_only_where_it_is_an_exception() -> None:
    assert Controls().with_subject("a.b", OPEN).subjects == {}
    paused = Controls().with_subject("a.*", PAUSED)
    assert paused.with_subject("a.b", OPEN).subjects == {"a.*": PAUSED, "a.b": OPEN}
    assert paused.with_subject("a.b*", OPEN).subjects == {"a.*": PAUSED, "a.b*": OPEN}
    assert paused.with_subject("b", OPEN).subjects == {"a.*": PAUSED}
    assert paused.with_subject("a.*", OPEN).subjects == {}
    assert Controls().with_group("g", GroupControl()).groups == {}


def test_an_exception_is_gone_with_the_last_pause_that_it_excepts_from() -> None:
    both = Controls().with_subject("a.*", PAUSED).with_subject("*", PAUSED)
    excepted = both.with_subject("a.b", OPEN).with_subject("b", OPEN)
    assert set(excepted.subjects) == {"*", "a.*", "a.b", "b"}
    without_all = excepted.with_subject("*", None)
    assert set(without_all.subjects) == {"a.*", "a.b"}
    assert without_all.with_subject("a.*", OPEN).subjects == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["*", "a*", "a.*", "a.b", "a.b*", "b", "a"]),
            st.sampled_from([None, OPEN, PAUSED]),
        ),
        max_size=12,
    )
)
def test_an_open_rule_is_there_only_where_it_keeps_a_pause_off(
    changes: list[tuple[str, SubjectControl | None]],
) -> None:
    controls = Controls()
    for pattern, rule in changes:
        controls = controls.with_subject(pattern, rule)
        # Of the rules that say something none is lost.
        if rule is not None and rule.paused:
            assert controls.subjects[pattern] == rule
        for name, found in controls.subjects.items():
            over = [other for other in controls.subjects if _stands_for(other, name)]
            if not found.paused:
                assert any(controls.subjects[other].paused for other in over)


def _stands_for(prefix: str, name: str) -> bool:
    return prefix != name and prefix.endswith("*") and name.startswith(prefix[:-1])


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", ""),
        (b"\xff", ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
        (b'{"version":-1}', "version"),
        (b'{"colour":"red"}', ""),
        (b'{"subjects":{"a":{"paused":1}}}', "subjects[...].paused"),
        (b'{"groups":{"a":{"rate_per_s":0}}}', "groups[...].rate_per_s"),
        (b'{"groups":{"a":{"rate_per_s":1e300}}}', "groups[...].rate_per_s"),
        (b'{"subjects":{"a":{"pausd":true}}}', "subjects[...]"),
        (b'{"groups":{"a":{"weight":0}}}', "groups[...].weight"),
        (b'{"subjects":{"":{}}}', "subjects"),
        (b'{"groups":{"":{}}}', "groups"),
        (b'{"subjects":{"\\ud800":{}}}', ""),
        (b" " * (CONTROLS_BYTES_MAX + 1), ""),
        (msgspec.json.encode({"subjects": {"a" * (PATTERN_BYTES_MAX + 1): {}}}), "subjects"),
        (msgspec.json.encode({"groups": {"a" * 256: {}}}), "groups"),
        (
            msgspec.json.encode({"subjects": {str(n): {} for n in range(SUBJECT_RULES_MAX + 1)}}),
            "subjects",
        ),
        (
            msgspec.json.encode({"groups": {str(n): {} for n in range(GROUP_RULES_MAX + 1)}}),
            "groups",
        ),
    ],
)
def test_what_is_no_document_is_refused_and_said_where(data: bytes, where: str) -> None:
    with pytest.raises(ControlsError) as caught:
        decode_controls(data)
    assert caught.value.where == where


def test_a_document_with_as_much_as_there_may_be_takes_no_more() -> None:
    full = Controls(
        subjects={f"s{n}": PAUSED for n in range(SUBJECT_RULES_MAX)},
        groups={f"g{n}": GroupControl(paused=True) for n in range(GROUP_RULES_MAX)},
    )
    with pytest.raises(ControlsError, match="more than 1000 rules; remove some"):
        full.with_subject("one more", PAUSED)
    with pytest.raises(ControlsError, match="more than 1000 of them; remove some"):
        full.with_group("one more", GroupControl(paused=True))
    assert full.with_subject("s1", OPEN).version == 1
    control = "\x01"
    largest = Controls(
        subjects={f"{n:{control}>{PATTERN_BYTES_MAX}}": PAUSED for n in range(SUBJECT_RULES_MAX)},
        groups={
            f"{n:{control}>255}": GroupControl(paused=True, rate_per_s=1.5, weight=2.5)
            for n in range(GROUP_RULES_MAX)
        },
    )
    assert decode_controls(encode_controls(largest)) == largest


@pytest.mark.parametrize("pattern", ["", "a" * (PATTERN_BYTES_MAX + 1), "\ud800"])
def test_a_name_that_no_subject_can_have_is_refused(pattern: str) -> None:
    with pytest.raises(ControlsError):
        Controls().with_subject(pattern, PAUSED)
    with pytest.raises(ControlsError):
        Controls().with_group(pattern, GroupControl(paused=True))


STORE = UUID(int=0xA)
GROUPS = st.builds(
    GroupControl,
    paused=st.booleans(),
    rate_per_s=st.sampled_from([None, 1, 2]),
    weight=st.sampled_from([None, 3]),
)
DOCUMENTS = st.builds(
    Controls,
    version=st.integers(0, 2**62),
    subjects=st.dictionaries(NAMES.filter(bool), RULES, max_size=5),
    groups=st.dictionaries(NAMES.filter(bool), GROUPS, max_size=3),
)


@given(DOCUMENTS, DOCUMENTS)
def test_a_document_is_sent_with_its_store_and_named_by_all_that_it_says(
    controls: Controls, other: Controls
) -> None:
    sent = decode_controls(document_of(controls, STORE))
    assert sent == msgspec.structs.replace(controls, store=STORE)
    assert id_of(controls) is None
    another = id_of(decode_controls(document_of(other, STORE)))
    named = id_of(sent)
    assert named is not None
    assert another is not None
    assert read_document(document_of(controls, STORE), named) == sent
    assert (named == another) is (controls == other)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        encode_controls(Controls(version=3)),
        b'{"store":"00000000-0000-0000-0000-00000000000a","version":-1}',
        b'{"store":"00000000-0000-0000-0000-00000000000a","subjects":{"a":{"shut":true}}}',
        document_of(Controls(version=3, subjects={"a": PAUSED}), STORE),
    ],
)
def test_what_is_not_the_document_of_a_name_is_refused(document: bytes) -> None:
    named = id_of(Controls(version=3, store=STORE))
    assert named is not None
    with pytest.raises(MalformedMetaError):
        read_document(document, named)


def test_a_document_that_would_not_fit_into_an_answer_is_not_made() -> None:
    subjects = {f"{number:03}{'x' * 1000}": PAUSED for number in range(100)}
    with pytest.raises(ControlsError, match=f"at most {DOCUMENT_BYTES_MAX}"):
        document_of(Controls(version=1, subjects=subjects), STORE)
