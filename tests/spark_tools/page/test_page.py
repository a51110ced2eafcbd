"""Promise: a page says what its document says, in bounded space, and nobody's name breaks it."""

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.page.figures import done, due, subjects, times
from spark_tools.page.page import MEANINGS, PageLimits, page
from spark_tools.run.document import Document, document_of
from spark_tools.run.reconcile import FINDING_CLASSES
from tests.seeds import examples
from tests.spark_tools.documents import BASE, document, example, group, hour, subject_row


class Outline(HTMLParser):
    """Takes down the elements of a page, their attributes, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: Counter[str] = Counter()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    found.close()
    return found


def made(**changes: Any) -> str:  # noqa: ANN401 (of many types)
    return page(document_of(document(**changes)))


def words(html: str) -> str:
    return re.sub(r"\s+", " ", " ".join(outline(html).words))


def hostile(name: str) -> dict[str, Any]:
    """Return a document with a name wherever there can be one of somebody else's."""
    findings = {**dict.fromkeys(FINDING_CLASSES, 0), "lost": 1}
    target = {"hour": hour(0), "target": name, "facts": 1, "first": 1, "lateness_ms": {}}
    one = group(name, [subject_row(0, name, accepted=2, delivered=1, lost=1)], [target])
    one["cluster"] = name
    replica = {"node": name, "hour": hour(0), "what": name, "authority": 1, "replica": 2}
    one["replicas_differ"] = [replica]
    plain = document()
    return document(
        verdict="findings",
        exit_code=1,
        complete=False,
        findings=findings,
        watermark=name,
        parameters={"from": None, "to": None, "expected_groups": [name], "x": name},
        manifests=[
            {**plain["manifests"][0], "node": name, "root": name, "cluster": name, "made": name}
        ],
        problems=[{"cluster": name, "group": name, "node": name, "problem": name}],
        groups=[one],
        examples=[
            example(
                subject=name, message_id=name, file=name, note=name, target=name, outcome=name,
                cluster=name, group=name,
            )
        ],
    )  # fmt: skip


PLAIN = outline(page(document_of(hostile("name"))))


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "'><svg onload=alert(1)>",
        "</style><b>",
        "</title></td></table>",
        "<!-- ",
        "&lt;b&gt; &amp; &#60;",
        "a\u202eb\u2066",
        "line\nbreak\r\x00\x1b[31m",
        "\udcff surrogate",
        "x" * 100_000,
        "",
        "{} {0} %s",
    ],
)
def test_a_hostile_name_is_shown_and_changes_nothing_else(name: str) -> None:
    html = page(document_of(hostile(name)))
    html.encode()
    assert outline(html).tags.count("script") == 0
    assert len(html) < 60_000
    for mark in "\u202e\u2066\x00\x1b":
        assert mark not in html
    if name:
        assert outline(html).tags == PLAIN.tags
        assert outline(html).attributes == PLAIN.attributes


@examples(25)
@given(st.text(min_size=1, max_size=200))
def test_no_name_at_all_changes_the_structure(name: str) -> None:
    found = outline(page(document_of(hostile(name))))
    assert found.tags == PLAIN.tags
    assert found.attributes == PLAIN.attributes


def test_nothing_is_loaded_and_nothing_runs() -> None:
    html = page(document_of(hostile("name")))
    assert "default-src &#x27;none&#x27;" in html
    assert not {"script", "link", "img", "iframe", "a"} & set(PLAIN.tags)
    assert not {name for name in PLAIN.attributes if name.startswith("on")}
    assert not {"src", "href"} & set(PLAIN.attributes)
    assert "url(" not in html
    assert "@import" not in html


# -- verdicts ---------------------------------------------------------------------------------


def test_a_clean_run_says_so_and_what_that_means() -> None:
    said = words(made())
    assert "Clean" in said
    assert "Each message (accepted 3) has exactly one state" in said
    assert "Not complete" not in said
    assert "≥" not in said


def test_an_empty_cluster_is_clean_and_says_that_nothing_was_there() -> None:
    said = words(made(groups=[group(rows=[], targets=[])]))
    assert "There is nothing in the range" in said
    said = words(made(groups=[], manifests=[]))
    assert "There is nothing in the range" in said


def test_an_incomplete_run_never_looks_like_no_loss() -> None:
    rows = [subject_row(0, "a", accepted=3, unknown=3)]
    problem = {"cluster": "c", "group": "g", "node": "n", "problem": "it is gone"}
    html = made(
        verdict="incomplete",
        exit_code=2,
        complete=False,
        problems=[problem],
        groups=[group(rows=rows)],
    )
    said = words(html)
    assert "Not complete" in said
    assert "does not say that nothing was lost" in said
    assert "it is gone" in said
    assert "Clean" not in said
    assert "≥ 0 lost" in said
    assert 'class="verdict clean"' not in html


def test_findings_are_told_with_their_examples_and_that_there_may_be_more() -> None:
    findings = {**dict.fromkeys(FINDING_CLASSES, 0), "lost": 12, "replica_differs": 1}
    html = made(
        verdict="findings",
        exit_code=1,
        complete=False,
        findings=findings,
        examples=[example(sequence=number, message_id=f"id-{number}") for number in range(12)],
    )
    said = words(html)
    assert "12 lost, 1 replica differs" in said
    assert "There may be more than what is shown" in said
    assert "12, the first 10" in said
    assert "id-9" in said
    assert "id-10" not in said
    assert "schedule_log/x.minute at 64" in said
    assert "no examples in the result" in said


def test_every_class_of_findings_has_a_meaning() -> None:
    assert set(FINDING_CLASSES) <= set(MEANINGS)


def test_numbers_that_cannot_be_are_shown_as_they_are() -> None:
    far = example(due_ms=2**60, at_ms=-(2**60), sequence=None, position=None, file=None)
    findings = {**dict.fromkeys(FINDING_CLASSES, 0), "lost": 1}
    said = words(made(verdict="findings", findings=findings, examples=[far]))
    assert f"{2**60:,} ms" in said


# -- figures ----------------------------------------------------------------------------------


def large(*, groups: int, hours: int, names: int) -> Document:
    found = [
        group(
            f"g{number}",
            [
                subject_row(
                    at * 7, f"s{(at * 31 + number) % names}", accepted=10, delivered=8, lost=1,
                    waiting=1,
                )
                for at in range(hours)
            ],
        )
        for number in range(groups)
    ]  # fmt: skip
    problem = {"cluster": "c", "group": "g", "node": "n", "problem": "x" * 5000}
    plain = document()
    return document_of(
        document(
            verdict="findings",
            complete=False,
            groups=found,
            problems=[problem] * 1000,
            manifests=plain["manifests"] * 1000,
            examples=[example(kind, message_id="m" * 1000) for kind in MEANINGS for _ in range(50)],
        )
    )


def test_a_page_is_of_bounded_size_whatever_there_is() -> None:
    small = len(page(large(groups=45, hours=100, names=1_000)))
    assert len(page(large(groups=90, hours=200, names=10_000))) < 1.2 * small < 1_000_000


def test_limits_are_kept() -> None:
    some = large(groups=6, hours=60, names=100)
    limits = PageLimits(
        columns=10, groups=3, subjects=4, targets=1, examples=2, problems=3, manifests=2
    )
    said = words(page(some, limits))
    for more in ("3 more groups", "997 more reasons", "998 more manifests", "96 more subjects"):
        assert more in said


@pytest.mark.parametrize("columns_max", [2, 5, 24, 96])
def test_columns_add_up_to_everything_however_few_there_are(columns_max: int) -> None:
    some = large(groups=3, hours=70, names=10)
    found = times(some, columns_max=columns_max)
    assert len(found.columns) <= columns_max
    for name in ("accepted", "delivered", "lost"):
        wanted = sum(row[name] for one in some.groups for row in one.by_subject)
        assert sum(column.counts[name] for column in found.columns) == wanted
        assert sum(counts[name] for one in found.by_group.values() for counts in one) == wanted
    minutes = [column.minute for column in found.columns]
    assert minutes == list(range(minutes[0], minutes[-1] + 1, found.hours * 60))
    assert minutes[0] % (found.hours * 60) == 0


def test_hours_that_were_asked_for_are_there_though_nothing_was_due() -> None:
    some = document_of(document(parameters={"from": hour(-2), "to": hour(4)}))
    found = times(some, columns_max=96)
    assert [column.minute for column in found.columns] == [
        BASE + 60 * number for number in range(-2, 4)
    ]
    assert [column.counts["accepted"] for column in found.columns] == [0, 0, 3, 0, 0, 0]


def test_what_was_due_and_what_is_done() -> None:
    counts = Counter(accepted=20, delivered=9, cancelled=2, repaired=1, waiting=3, lost=1)
    counts.update(overdue=2, unknown=2)
    assert (due(counts), done(counts)) == (17, 12)


def test_the_worst_subjects_come_first_and_then_the_largest() -> None:
    rows = [subject_row(0, f"s{number}", accepted=number, delivered=number) for number in range(9)]
    rows.append(subject_row(0, "bad", accepted=2, delivered=1, lost=1))
    rows.append(subject_row(1, "bad", accepted=3, delivered=2, overdue=1))
    rows.append(subject_row(1, "worse", accepted=3, delivered=1, lost=2))
    some = document_of(document(groups=[group(rows=rows)]))
    html = page(some, PageLimits(subjects=4))
    places = [html.index(f'class="name">{name}<') for name in ("worse", "bad", "s8", "s7")]
    assert places == sorted(places)
    assert "s6<" not in html
    [bad] = [one for one in subjects(some) if one.name == "bad"]
    assert (bad.counts["accepted"], bad.counts["lost"], bad.wrong) == (5, 1, 2)


def test_a_document_of_unknown_fields_is_read_too() -> None:
    data = {**document(), "more": [1, 2], "groups": [{**group(), "hours": {}}]}
    assert page(msgspec.convert(data, Document)) == made()
