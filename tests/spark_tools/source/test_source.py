"""`spark.read.format("delaywheel")` is there by being installed, and says what the readers say."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_delaywheel import DefaultSource
from spark_tools.files.errors import OptionError
from spark_tools.run.plan import Source
from spark_tools.run.source_options import NODE_COLUMNS, read_options
from spark_tools.source.source import spark_schema
from storage.readers.arrow import COLUMNS, Kind
from storage.readers.manifest import encode_manifest
from tests.spark_tools.source.test_reader import hurt, read
from tests.spark_tools.worlds import FAULTS, T0, builder_of, world_of

ROOT = Path(__file__).parents[3]
PUSHING = "spark.sql.python.filterPushdown.enabled"
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return world_of(6, frozenset(FAULTS)).written(tmp_path_factory.mktemp("world"))


def manifest_of(source: Source) -> str:
    """Write the manifest beside its files; return the option that names it."""
    file = Path(source.root) / "manifest.json"
    file.write_bytes(encode_manifest(source.manifest))
    return f"{file}={source.root}"


def loaded(spark: SparkSession, source: Source, **options: str) -> DataFrame:
    options["manifests"] = manifest_of(source)
    return spark.read.format("delaywheel").options(**options).load()


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(repr(row.asDict()) for row in frame.collect())


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind is Kind.SCHEDULE else pytest.mark.long) for kind in Kind],
)
def test_every_column_of_every_kind_is_what_the_readers_say(
    kind: Kind, spark: SparkSession, source: Source
) -> None:
    asked = {"kind": str(kind), "columns": ",".join((*NODE_COLUMNS, *COLUMNS[kind]))}
    options = read_options(asked | {"roots": "a"})
    frame = loaded(spark, source, **asked)
    assert frame.columns == [*NODE_COLUMNS, *COLUMNS[kind]]
    assert frame.schema == spark_schema(options.schema)
    wanted = sorted(
        # Spark gives bytes as a bytearray, or as bytes: as it is set.
        repr({name: _plain(value) for name, value in row.items()})
        for row in read([source], options)
    )
    found = [
        {name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()
    ]
    assert sorted(map(repr, found)) == wanted
    assert wanted or kind is Kind.DEAD


def _plain(value: object) -> object:
    match value:
        case bytearray():
            return bytes(value)
        case list():  # a map, to Arrow
            return dict(value)
        case _:
            return value


def test_what_the_page_asks_of_dead_letters_is_what_dead_show_shows(spark: SparkSession) -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("```sql\n")
    query, _, _ = rest.partition("```")
    schema = "due_ms long, attributes map<string, string>, reason string"
    told = {"qmq_scheduleReceiveTime": "20"}
    rows = [
        (30, told | {"qmq_appCode": "shop"}, json.dumps({"tries": 8})),
        (30, told | {"dw_firstDue": "10", "qmq_times": "3"}, json.dumps({"tries": 1})),
        (30, {"dw_firstDue": "x", "qmq_times": ""}, "text of another program"),
        (30, None, None),
    ]
    spark.createDataFrame(rows, schema).createOrReplaceTempView("dead_letters")
    found = {tuple(row) for row in spark.sql(query).collect()}
    assert found == {("shop", 20, 8), (None, 10, 4), (None, 30, 0)}


@pytest.mark.long
def test_directories_are_read_as_they_are_now(spark: SparkSession, tmp_path: Path) -> None:
    from tests.delaywheel.spark.test_commands import directory  # noqa: PLC0415 (makes files only)

    data = directory(tmp_path / "data")
    reader = spark.read.format("delaywheel").option("kind", "schedule")
    assert reader.load(str(data)).count() == 5
    assert reader.option("roots", str(data)).load().where("subject is not null").count() == 5


@pytest.mark.long
def test_a_filter_narrows_no_other_query_of_the_same_frame_where_spark_hands_filters_down(
    spark: SparkSession, source: Source
) -> None:
    asked = {"kind": "schedule", "partition_bytes": "1", "columns": "filed_minute,sequence,group"}
    condition = f"filed_minute between {T0} and {T0 + 1} and `group` = 'g'"
    plainly = rows_of(loaded(spark, source, **asked))
    narrowed = rows_of(loaded(spark, source, **asked).where(condition))
    assert 0 < len(narrowed) < len(plainly)
    spark.conf.set(PUSHING, "true")
    try:
        frame = loaded(spark, source, **asked)
        assert rows_of(frame.where(condition)) == narrowed
        assert rows_of(frame) == plainly
        assert frame.where("`group` = 'other'").count() == 0
        assert frame.count() == len(plainly)
        twice = frame.where("`group` = 'g'").unionAll(frame.where("`group` = 'other'"))
        assert twice.count() == len(plainly)
    finally:
        spark.conf.unset(PUSHING)


@pytest.mark.long
def test_a_cluster_without_messages_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    source = builder_of(1, count=0).build().written(tmp_path)
    frame = loaded(spark, source, kind="schedule")
    assert frame.collect() == []
    assert frame.count() == 0
    assert frame.columns[:4] == ["cluster", "group", "node", "sequence"]


def test_damage_comes_to_the_driver_with_its_place_and_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    import random  # noqa: PLC0415 (here only)

    world = world_of(6)
    path = max(world.manifest.sealed, key=lambda one: one.length).file
    hurt(world, path, random.Random(1))
    source = world.written(tmp_path)
    with pytest.raises(PythonException) as error:
        loaded(spark, source, kind="schedule").count()
    assert f"{path} at " in str(error.value)
    assert f"delaywheel log verify {tmp_path}" in str(error.value)
    frame = loaded(spark, source, kind="schedule", damage="skip")
    assert frame.columns[-1] == "damage"
    [row] = frame.where("damage is not null").collect()
    assert row["file"] == path
    assert row["sequence"] is None
    assert frame.where("damage is null").count() > 10


def test_columns_are_not_chosen_by_a_schema() -> None:
    source = DefaultSource({"kind": "schedule", "roots": "a"})
    assert source.name() == "delaywheel"
    with pytest.raises(OptionError, match="by the option `columns`"):
        source.reader(StructType([source.schema()["sequence"]]))
