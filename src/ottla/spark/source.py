# ruff: noqa: N802 - the names are Spark's
"""The data source `ottla`: what Spark asks for a reader, a stream or a writer of Kafka topics.

Options and a schema come in as Spark hands them over, and are checked before anything is started. Readers and writers
are imported when they are needed: Spark starts one process to find the sources there are, and another to ask for the
columns, before any that reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ottla.spark.columns import check_schema, full_schema
from ottla.spark.idle_workers import silence_this
from ottla.spark.wording import in_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

silence_this()


class OttlaSource(DataSource):
    """`spark.read.format("ottla")`, with the options and columns of Spark's own Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "ottla"

    @in_options()
    def schema(self) -> StructType:
        """The columns, where the user asks for no others."""
        from ottla.spark.read_options import general, with_headers

        general(self.options)
        return full_schema(headers=with_headers(self.options))

    @in_options()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from ottla.spark.batch_source import BatchReader
        from ottla.spark.read_options import for_batch

        check_schema(schema)
        return BatchReader(for_batch(self.options), schema)

    @in_options()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        from ottla.spark.read_options import for_stream
        from ottla.spark.stream_source import StreamReader

        check_schema(schema)
        return StreamReader(for_stream(self.options), schema)

    @in_options()
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """For `df.write`."""
        from ottla.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @in_options()
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """For `df.writeStream`."""
        from ottla.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Makes the source known to a session that has not found it by itself."""
    spark.dataSource.register(OttlaSource)
