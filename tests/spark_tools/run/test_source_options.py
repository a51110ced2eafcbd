"""Options of the data source: what is wrong is named, with what there is."""

import pyarrow as pa
import pytest

from spark_tools.files.errors import OptionError
from spark_tools.judge.tasks import FOREVER
from spark_tools.run.source_options import (
    NODE_COLUMNS,
    PARTITION_BYTES,
    About,
    OnDamage,
    Replicas,
    read_options,
)
from storage.readers.arrow import COLUMNS, ON_DEMAND, Kind, schema_of

LEAST = {"kind": "schedule", "roots": "a"}


def test_little_is_enough_and_everything_else_has_a_default() -> None:
    options = read_options({"KIND": "schedule", "path": "a,b"})
    assert options.roots == ("a,b",), "a path may have anything in it"
    assert options.columns == (*NODE_COLUMNS, *schema_of(Kind.SCHEDULE).names)
    assert (options.replicas, options.damage) == (Replicas.AUTHORITY, OnDamage.FAIL)
    assert (options.from_minute, options.to_minute) == (0, FOREVER)
    assert options.partition_bytes == PARTITION_BYTES
    assert not options.has_range


def test_what_there_are_several_of_is_separated_by_commas_or_a_json_list() -> None:
    options = read_options(
        {
            "kind": "dispatch",
            "roots": "a, b,",
            "paths": '["c,c"]',
            "manifests": '["m.json=d,e"]',
            "groups": "g1,g2",
            "columns": "group, target ,at_ms",
            "about": "dead",
        }
    )
    assert options.roots == ("a", "b", "c,c")
    assert options.manifests == ("m.json=d,e",)
    assert options.groups == ("g1", "g2")
    assert options.columns == ("group", "target", "at_ms")
    assert options.about is About.DEAD


def test_minutes_are_those_of_reconcile() -> None:
    options = read_options(LEAST | {"from": "1970-01-02T00:00Z", "to": "1970-01-02T02:00+01:00"})
    assert (options.from_minute, options.to_minute) == (1440, 1500)
    assert options.has_range
    assert options.wants(1499, 1500)
    assert not options.wants(1500, 1501)
    assert not options.wants(1439, 1440)


@pytest.mark.parametrize("kind", list(Kind))
def test_the_schema_is_that_of_the_logs_and_whose_row_it_is(kind: Kind) -> None:
    options = read_options({"kind": str(kind), "roots": "a", "damage": "skip"})
    names = [*NODE_COLUMNS, *(name for name in COLUMNS[kind] if name not in ON_DEMAND), "damage"]
    assert options.schema.names == names
    for field in options.schema:
        text = field.name in {*NODE_COLUMNS, "damage"}
        assert field.type == (pa.string() if text else COLUMNS[kind][field.name])
        assert field.nullable


def test_the_payload_is_there_if_it_is_asked_for() -> None:
    assert read_options(LEAST | {"payload": "True"}).columns[-1] == "payload"
    columns = read_options(LEAST | {"payload": "true", "columns": "payload,size"}).columns
    assert columns == ("payload", "size")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"roots": "a"}, "kind is missing; it is one of message, schedule, dead, dispatch"),
        ({"kind": "schedul", "roots": "a"}, "'schedul'; it must be one of message"),
        ({"kind": "schedule"}, "nothing to read"),
        (LEAST | {"root": "a"}, "no option root; there are about, columns"),
        (LEAST | {"from": "yesterday"}, "from: 'yesterday' is no time"),
        (LEAST | {"to": "2013-11-27T00:00:01Z"}, "no whole minute"),
        (LEAST | {"from": "1970-01-02T00:00Z", "to": "1970-01-02T00:00Z"}, "range is empty"),
        (LEAST | {"columns": "sequence,target"}, "no column target in schedule; there are cluster"),
        (LEAST | {"columns": "sequence,sequence"}, "named twice"),
        (LEAST | {"payload": "yes"}, "must be true or false"),
        (LEAST | {"damage": "ignore"}, "must be one of fail, skip, only"),
        (LEAST | {"replicas": "both"}, "must be one of authority, all"),
        (LEAST | {"partition_bytes": "0"}, "number of bytes above 0"),
        (LEAST | {"partition_bytes": "128m"}, "number of bytes above 0"),
        (LEAST | {"groups": "[1]"}, "commas between, or a JSON list"),
        (LEAST | {"groups": "[g"}, "commas between, or a JSON list"),
        (LEAST | {"unfiled": "true"}, "unfiled is for kind message, not for schedule"),
        (LEAST | {"about": "dead"}, "about is for kind dispatch"),
        (
            {"kind": "dispatch", "roots": "a", "about": "dead", "from": "1970-01-02T00:00Z"},
            "leave out `from` and `to`",
        ),
        ({"kind": "dispatch", "roots": "a", "payload": "true"}, "no column payload in dispatch"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        read_options(given)
