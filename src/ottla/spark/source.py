# ruff: noqa: N802 - the names are Spark's
"""The data source `ottla`: gives Spark readers, stream readers and writers of Kafka topics.

Options and a schema come in as Spark passes them and are checked before anything starts. Readers and writers are
imported only when used: before any process that reads, Spark starts one to find the sources and one to ask for the
columns, and those should start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ottla.spark.columns import check_schema, full_schema
from ottla.spark.idle_workers import silence_this_worker
from ottla.spark.wording import in_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

silence_this_worker()


class OttlaSource(DataSource):
    """`spark.read.format("ottla")`, with the options and columns of Spark's own Kafka connector.

    Every method raises `ConfigError` for a wrong option and `InputError` for a schema that the source does not have.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "ottla"

    @in_options()
    def schema(self) -> StructType:
        """The columns, unless the user gives a schema."""
        from ottla.spark.read_options import for_either, with_headers

        for_either(self.options)
        return full_schema(headers=with_headers(self.options))

    @in_options()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for `spark.read`."""
        from ottla.spark.batch_source import BatchReader
        from ottla.spark.read_options import for_batch

        check_schema(schema)
        return BatchReader(for_batch(self.options), schema)

    @in_options()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for `spark.readStream`."""
        from ottla.spark.read_options import for_stream
        from ottla.spark.stream_source import StreamReader

        check_schema(schema)
        return StreamReader(for_stream(self.options), schema)

    @in_options()
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """The writer for `df.write`."""
        from ottla.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @in_options()
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """The writer for `df.writeStream`."""
        from ottla.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the source with a session that does not find it automatically."""
    spark.dataSource.register(OttlaSource)
