"""One self-contained HTML page of a run, made of its JSON document alone.

Nothing is loaded and nothing runs: style and plots are in it, and it says itself that there is to
be no script. It is of bounded size whatever the document holds (`PageLimits`).
"""

from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from spark_tools.files.columns import ORIGINS
from spark_tools.files.markup import Html, Part, element, joined, shown
from spark_tools.page.figures import (
    MISSING,
    NOT_DONE,
    SETTLED,
    Times,
    classes,
    origins_text,
    rows,
    states,
    subjects,
    targets,
    times,
    worst_and_largest,
)
from spark_tools.page.plots import by_hour, completeness, count_text, lateness, ms_text, quantiles
from spark_tools.page.tables import (
    counted,
    dotted,
    example_cells,
    identities,
    more,
    names_table,
    table,
    value_text,
    words,
)
from spark_tools.run.document import Document, Example, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """How much a page shows; beyond it, it says how much there is."""

    columns: int = 96
    """Columns of plots over time, at least 2: of an hour each, or of several."""
    groups: int = 40
    """Groups with a row of their own: those with something wrong first."""
    subjects: int = 50
    """Subjects: the worst in up to half of the places, then the largest."""
    targets: int = 50
    """Broker groups, as subjects."""
    examples: int = 10
    """Findings of each class."""
    problems: int = 40
    """Reasons why the input is not complete."""
    manifests: int = 40
    """Manifests."""
    hours: int = 40
    """Hours in which replicas differ."""


MEANINGS: Final = {
    "lost": "due, the segment is sealed, and no fact tells what became of it",
    "overdue": "due by the watermark, and no fact yet: the node still owes it, and will deliver it",
    "duplicate": "another delivery of a row that was delivered before",
    "settled_twice": "another end of a row: moved twice, or delivered and moved; it may come twice",
    "phantom": "a fact of which no row was found",
    "early": "delivered before it was due",
    "late": "delivered later than --max-late allows",
    "misfiled": "filed where it does not belong",
    "doubled": "one row too many of a message",
    "missing": "in the message_log, replayed, and in no segment",
    "unlogged": "a row of which the message_log has no record",
    "altered": "a row that differs from its record",
    "log_differs": "an hour whose rows are not what the message_log, now gone, had of them",
    "replica_differs": "an hour of which a replica has something else",
    "unexplained": "a fact whose row may be among what could not be read: no finding",
    "repaired_not_lost": "sent again by a repair, although it is not lost: no finding",
}
"""What the classes of examples say, the worst first."""
_READ: Final = "All that this run looks at could be read; what it leaves out is told below."
_NO_PAYLOAD: Final = (
    "What is in the messages, and dead letters: their bytes were not looked at. --check-payload "
    "reads and checks them."
)
_DEAD: Final = (
    "What became of dead letters. One that was requeued is a message of its own, with a row of its "
    "own."
)
_REPLICA_LOGS: Final = "The message_log of replicas, but for its end."


def page(document: Document, limits: PageLimits | None = None) -> str:
    """Return the page of a run."""
    return _Page(document, limits or PageLimits()).whole()


class _Page:
    """The sections of one page."""

    def __init__(self, document: Document, limits: PageLimits) -> None:
        self._document = document
        self._limits = limits
        self._states = states(document)
        self._rows = Counter[str]()
        for group in document.groups:
            self._rows.update(group.rows)

    def whole(self) -> str:
        document = self._document
        range_ = _range_text(document.parameters)
        title = f"{document.verdict.upper()}: reconciliation of {range_}"
        style = files("spark_tools").joinpath("page.css").read_text(encoding="utf-8")
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element(
                "meta",
                http_equiv="Content-Security-Policy",
                content="default-src 'none'; style-src 'unsafe-inline'",
            ),
            element("title", shown(title)),
            # Ours, and without anything of a document.
            element("style", Html(style)),
        )
        body = element(
            "body",
            element("h1", "Reconciliation"),
            element(
                "p", f"{range_}, as of the watermark {shown(document.watermark)}", class_="faint"
            ),
            self._verdict(),
            self._figures(),
            self._problems(),
            self._time(),
            self._findings(),
            self._lateness(),
            self._subjects(),
            self._targets(),
            self._replicas(),
            self._books(),
            _left_out(document),
            self._input(),
        )
        return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"

    # -- what it comes to --------------------------------------------------------------------

    def _verdict(self) -> Html:
        document = self._document
        boxes = []
        found = ", ".join(f"{count:,} {words(name)}" for name, count in classes(document))
        if document.verdict == "clean":
            boxes.append(_box("clean", "Clean", self._clean_text()))
        if found:
            boxes.append(_box("findings", "Findings", f"{found}."))
        if not document.complete:
            text = (
                "There may be more than what is shown: not all of the input could be read."
                if found
                else "Nothing wrong was found in what could be read, but not all could be. "
                "This does not say that nothing was lost."
            )
            count = len(document.problems)
            boxes.append(
                _box("incomplete", "Not complete", f"{text} {counted(count, 'reason')} below.")
            )
        return joined(*boxes)

    def _clean_text(self) -> str:
        if not rows(self._rows):
            return (
                f"There is nothing in the range: no message that was accepted is due in it. {_READ}"
            )
        origins = origins_text(self._rows)
        said = [
            f"Each message ({origins}) has exactly one state, and none of them is lost or overdue.",
            _READ,
        ]
        if waiting := self._states["waiting"]:
            said.append(f"{waiting:,} were not due by the watermark.")
        repaired = self._states["repaired"]
        repaired += sum(group.log.get("repaired", 0) for group in self._document.groups)
        if repaired:
            said.append(f"{repaired:,} had been lost, or were missing, and were sent again.")
        return " ".join(said)

    def _figures(self) -> Html:
        found, document = self._states, self._document
        counts = [
            *((name, self._rows[name], "") for name in ORIGINS),
            ("delivered", found["delivered"], ""),
            ("ended otherwise", sum(found[one] for one in SETTLED), ""),
            ("waiting", found["waiting"], ""),
            ("repaired", found["repaired"], ""),
            ("overdue", found["overdue"], "wrong"),
            ("lost", found["lost"], "wrong"),
            ("missing", document.findings.get("missing", 0), "wrong"),
            ("unknown", found["unknown"], "doubtful"),
        ]
        always = {"accepted", "delivered", "waiting", "overdue", "lost"}
        return element(
            "div",
            *(
                self._figure(name, count, mark)
                for name, count, mark in counts
                if count or name in always
            ),
            class_="figures",
        )

    def _figure(self, name: str, count: int, mark: str) -> Html:
        """Return a figure; of an incomplete input none that says that all is well."""
        text = count_text(count)
        if mark and not self._document.complete:
            text, mark = f"≥ {text}", mark if count else "doubtful"
        elif not count:
            mark = ""
        return element("div", element("b", text), element("span", name), class_=mark or None)

    def _problems(self) -> Html | None:
        problems = self._document.problems
        if not problems:
            return None
        most = self._limits.problems
        rows = [
            [shown(dotted(one.cluster, one.group)), shown(one.node), shown(one.problem, 400)]
            for one in problems[:most]
        ]
        return joined(
            element("h2", "Why the input is not complete"),
            table([("group", "short"), ("node", "short"), ("what is wrong", "long")], rows),
            more(len(problems), most, "reason"),
        )

    # -- findings ----------------------------------------------------------------------------

    def _findings(self) -> Html | None:
        document = self._document
        there = [name for name in MEANINGS if self._examples(name) or document.findings.get(name)]
        if not there:
            return None
        return joined(
            element("h2", "Findings"),
            *(self._class(name, document.findings.get(name)) for name in there),
        )

    def _examples(self, name: str) -> list[Example]:
        return [one for one in self._document.examples if one.kind == name]

    def _class(self, name: str, count: int | None) -> Html:
        examples = self._examples(name)
        told = examples[: self._limits.examples]
        headers = [
            ("group", "short"), ("sequence", "number"), ("message id", "name"), ("subject", "name"),
            ("due", "short"), ("time of the fact", "short"), ("what", "short"),
            ("file and position", "long"), ("note", "long"),
        ]  # fmt: skip
        rows = [example_cells(one) for one in told]
        # Columns that say nothing are left out.
        kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
        headers = [headers[place] for place in kept]
        rows = [[row[place] for place in kept] for row in rows]
        said = f"{count:,}" if count is not None else f"{len(told):,} shown"
        if count is not None and len(told) < count:
            said += f", the first {len(told):,}" if told else ", no examples in the result"
        return joined(
            element("h3", f"{words(name)} ", element("span", f"({said})", class_="faint")),
            element("p", f"{MEANINGS[name]}.", class_="faint small"),
            table(headers, rows) if rows else None,
        )

    # -- plots -------------------------------------------------------------------------------

    def _time(self) -> Html | None:
        document = self._document
        if not document.groups:
            return None
        found = times(document, columns_max=self._limits.columns)
        if not found.columns:
            return None
        of_each = "hour" if found.hours == 1 else f"{found.hours} hours"
        groups = self._groups(found)
        return joined(
            element("h2", "Accepted, and what became of it"),
            element(
                "p",
                f"By the {of_each} in which it was due (UTC). {self._accepted_text()}",
                class_="faint small",
            ),
            by_hour(found),
            element("h2", "Completeness"),
            completeness(found, groups),
            more(len(document.groups), len(groups), "group"),
        )

    def _accepted_text(self) -> str:
        missing = self._document.findings.get(MISSING, 0)
        said = (
            "Accepted are the messages of which there is a row, or a record that is not filed yet"
        )
        if not missing:
            return f"{said}."
        return (
            f"{said}; {missing:,} more were accepted and are missing: completeness counts them as "
            "not done."
        )

    def _groups(self, found: Times) -> list[str]:
        """Return the groups with rows of their own."""

        def rank(name: str) -> tuple[int, int, str]:
            total: Counter[str] = Counter()
            for counts in found.by_group[name]:
                total.update(counts)
            wrong = sum(total[one] for one in (*NOT_DONE[1:], MISSING))
            return -wrong, -total["accepted"], name

        names = sorted(found.by_group, key=rank)[: self._limits.groups]
        return sorted(names) if len(names) == len(found.by_group) else names

    def _lateness(self) -> Html | None:
        groups = self._document.groups
        total: Counter[int] = Counter()
        rows = []
        for group in groups:
            counts = _lateness_of(group)
            total.update(counts)
            rows.append((group.name, counts, quantiles(counts, group.lateness_ms.max)))
        if not total:
            return None
        rows.sort(key=lambda one: (-(one[2][2][1] or 0), one[0]))
        most = self._limits.groups
        known = (group.lateness_ms.max for group in groups)
        latest = max((late for late in known if late is not None), default=None)
        of_all = quantiles(total, latest)
        headers = [("group", "name"), ("deliveries", "number")]
        headers += [(name, "number") for name, _ in of_all]
        every = [("all", total, of_all)] if len(rows) > 1 else []
        cells = [
            [shown(name), count_text(sum(counts.values())), *(ms_text(ms) for _, ms in found)]
            for name, counts, found in [*every, *rows[:most]]
        ]
        return joined(
            element("h2", "Lateness"),
            element(
                "p",
                "Deliveries by how long after the due time their fact is; both scales are "
                "logarithmic. Quantiles are upper bounds, at most an eighth too high; max is what "
                "it was.",
                class_="faint small",
            ),
            lateness(total, latest),
            table(headers, cells),
            more(len(rows), most, "group"),
        )

    # -- tables ------------------------------------------------------------------------------

    def _subjects(self) -> Html | None:
        found = subjects(self._document)
        if not found:
            return None
        most = self._limits.subjects
        columns = [
            *((name, "") for name in ORIGINS),
            ("delivered", ""),
            ("waiting", ""),
            ("overdue", "wrong"),
            ("lost", "wrong"),
            (MISSING, "wrong"),
            ("repaired", ""),
            ("unknown", "doubtful"),
            ("early", "wrong"),
            ("misfiled", "wrong"),
        ]
        return joined(
            element("h2", "Subjects"),
            element("p", "The worst first, then the largest.", class_="faint small"),
            names_table("subject", found, worst_and_largest(found, "accepted", most), columns),
            more(len(found), most, "subject"),
        )

    def _targets(self) -> Html | None:
        found = targets(self._document)
        if not found:
            return None
        most = self._limits.targets
        columns = [
            ("facts", ""),
            ("delivered", ""),
            ("first", ""),
            ("duplicate", "wrong"),
            ("settled_twice", "wrong"),
            ("phantom", "wrong"),
            ("repeated", ""),
            ("other", ""),
            ("unexplained", "doubtful"),
            ("early", "wrong"),
        ]
        return joined(
            element("h2", "Broker groups"),
            element("p", "Facts by who told them.", class_="faint small"),
            names_table("broker group", found, worst_and_largest(found, "facts", most), columns),
            more(len(found), most, "broker group"),
        )

    def _replicas(self) -> Html | None:
        differing = [
            [
                group.name,
                one.node,
                one.hour,
                one.what,
                count_text(one.authority),
                count_text(one.replica),
            ]
            for group in self._document.groups
            for one in group.replicas_differ
        ]
        if not differing:
            return None
        most = self._limits.hours
        headers = [
            ("group", "short"),
            ("node", "short"),
            ("hour", "short"),
            ("of what", "short"),
            ("counted", "number"),
            ("on the replica", "number"),
        ]
        rows = [[shown(str(cell)) for cell in row] for row in differing[:most]]
        return joined(
            element("h2", "Replicas that differ"),
            table(headers, rows),
            more(len(differing), most, "hour"),
        )

    def _books(self) -> Html | None:
        groups = self._document.groups
        if not groups:
            return None
        most = self._limits.groups
        rows: list[list[Part]] = []
        for group in groups[:most]:
            rows += identities(group)
        return joined(
            element("h2", "The books"),
            element(
                "p",
                "What must add up. If anything did not, there would be no result and no page.",
                class_="faint small",
            ),
            table([("group", "short"), ("what", "name"), ("figures", "long")], rows),
            more(len(groups), most, "group"),
        )

    # -- where it comes from -----------------------------------------------------------------

    def _input(self) -> Html:
        document = self._document
        parameters = [
            [element("code", shown(name)), shown(value_text(value), 400)]
            for name, value in document.parameters.items()
        ]
        most = self._limits.manifests
        manifests = [
            [
                shown(dotted(one.cluster, one.group)),
                shown(one.node),
                shown(one.role),
                shown(one.made),
                f"{one.first_sequence:,} to {one.log_next_sequence - 1:,}",
                count_text(one.sequence),
                f"{one.sealed:,} + {one.segments:,}",
                shown(one.root, 200),
            ]
            for one in document.manifests[:most]
        ]
        headers = [
            ("group", "short"), ("node", "short"), ("role", "short"), ("made", "short"),
            ("message_log", "short"), ("filed up to", "number"),
            ("segments, sealed + open", "short"), ("directory", "long"),
        ]  # fmt: skip
        return joined(
            element("h2", "Parameters"),
            table([("name", "short"), ("value", "long")], parameters),
            element(
                "p",
                f"Watermark: {shown(document.watermark)}. What was due by then should have a fact.",
            ),
            element("h2", "Manifests"),
            table(headers, manifests),
            more(len(document.manifests), most, "manifest"),
        )


def _box(kind: str, title: str, text: str) -> Html:
    return element("div", element("strong", title), text, class_=f"verdict {kind}")


def _left_out(document: Document) -> Html:
    """Return what the run did not look at, and what no figure of it says anything of."""
    is_checked = document.parameters.get("payload_checked", False)
    has_replicas = any(one.role == "replica" for one in document.manifests)
    total: Counter[str] = Counter(waiting=states(document)["waiting"])
    for group in document.groups:
        total.update(group.not_compared)
        total["before"] += group.pending_before
        total["unchecked"] += group.log.get("unchecked", 0)
        total["past_due"] += group.sent_past_due
    counts = [
        ("waiting", "message", "due after the watermark, of which nothing is missed yet"),
        ("before", "message", "without a fact, due before the range"),
        (
            "unchecked",
            "record",
            "of the message_log, not held against a row that was deleted or damaged",
        ),
        ("past_due", "message", "sent past due and delivered, without a lateness"),
        ("nodes", "node", "not compared with replicas, as not all of its logs can be read"),
        ("hours", "hour", "not compared between replicas, deleted or damaged on one of them"),
        (
            "hours_of_facts",
            "hour",
            "whose facts are not compared between replicas, not sealed on all of them",
        ),
    ]
    told = [_NO_PAYLOAD] * (not is_checked) + [_DEAD] + [_REPLICA_LOGS] * has_replicas
    told += [f"{counted(total[name], of)} {what}." for name, of, what in counts if total[name]]
    return joined(
        element("h2", "What this run leaves out"),
        element("ul", *(element("li", one) for one in told)),
    )


def _lateness_of(group: Group) -> Counter[int]:
    return Counter({one.from_ms: one.count for one in group.lateness_ms.buckets})


def _range_text(parameters: dict[str, Any]) -> str:
    begin, end = parameters.get("from"), parameters.get("to")
    if begin is None and end is None:
        return "everything"
    ends = [f"from {begin}"] * (begin is not None) + [f"to {end}"] * (end is not None)
    return " ".join(["what is due", *ends])
