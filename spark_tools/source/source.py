"""`spark.read.format("delaywheel")`: Spark's face of the logs. docs/spark.md tells how it is used.

Thin: options are read by `spark_tools/run/source_options.py`, files are chosen by
`spark_tools/source/parts.py`, and read by `spark_tools/source/reader.py`. Spark makes each of these
objects anew, in processes of its own, for each step of a query.
"""

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_tools.files.errors import OptionError
from spark_tools.run.plan import Source
from spark_tools.run.source_options import ReadOptions, read_options
from spark_tools.source.manifests import source_of_directory, source_of_file
from spark_tools.source.parts import PartitionPlan, plan_partitions
from spark_tools.source.reader import read_partition


class DelaywheelSource(DataSource):
    """The logs of nodes as a table."""

    @classmethod
    def name(cls) -> str:
        """Return what `format()` takes."""
        return "delaywheel"

    def schema(self) -> StructType:
        """Return the columns. Raises OptionError."""
        return spark_schema(read_options(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads. Raises OptionError."""
        options = read_options(self.options)
        if schema != spark_schema(options.schema):
            raise OptionError("columns are chosen by the option `columns`, not by a schema")
        return _Reader(options)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema as Spark has it."""
    return StructType([StructField(field.name, _TYPES[field.type]) for field in schema])


_TYPES: dict[pa.DataType, DataType] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
}


class _LogPartition(InputPartition):
    """What one task reads."""

    def __init__(self, plan: PartitionPlan) -> None:
        super().__init__(plan)
        self.plan = plan


class _Reader(DataSourceReader):
    """Reads everything that the options name.

    It takes no filters (`pushFilters`): Spark 4.1 keeps what was planned for the last query with
    filters, and gives it to the next one without any, and to the other side of a join.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return what is to be read; manifests of directories are made now."""
        plans = plan_partitions(_sources(self._options), self._options)
        return [_LogPartition(plan) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a task reads. Raises DamagedInputError."""
        # Without any partition Spark asks for one of its own.
        if isinstance(partition, _LogPartition):
            yield from read_partition(partition.plan, self._options)


def _sources(options: ReadOptions) -> list[Source]:
    now_ms = int(time.time() * 1000)
    found = [
        source_of_directory(root, now_ms=now_ms, from_minute=options.from_minute)
        for root in options.roots
    ]
    return found + [source_of_file(text) for text in options.manifests]
