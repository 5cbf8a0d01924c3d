"""`format("metaq")` as Spark sees it. Every method reads options and calls the source or the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from metaq.spark.errors import OptionError
from metaq.spark.schema import spark_schema
from metaq.spark.sink.options import sink_options
from metaq.spark.source.options import SourceOptions, source_options

if TYPE_CHECKING:
    from metaq.spark.sink.batch import SinkWriter
    from metaq.spark.sink.stream import StreamSinkWriter
    from metaq.spark.source.batch import BatchReader
    from metaq.spark.source.stream import StreamReader


class MetaqDataSource(DataSource):
    """Topics of a MetaQ or RocketMQ cluster as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        return spark_schema(source_options(self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        from metaq.spark.source.filtering import batch_reader

        options = source_options(self.options, streaming=False)
        _check_schema(schema, options)
        return batch_reader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        from metaq.spark.source.stream import StreamReader

        options = source_options(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> SinkWriter:
        from metaq.spark.sink.batch import SinkWriter

        return SinkWriter(schema, sink_options(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSinkWriter:
        from metaq.spark.sink.stream import StreamSinkWriter

        return StreamSinkWriter(schema, sink_options(self.options), overwrite=overwrite)


def _check_schema(given: StructType, options: SourceOptions) -> None:
    """Raises OptionError if the user gave another schema."""
    own = spark_schema(options.columns)
    shown = [(field.name, field.dataType.simpleString()) for field in given]
    if shown != [(field.name, field.dataType.simpleString()) for field in own]:
        raise OptionError(
            f"the columns of a message are not {given.simpleString()}",
            hint=f"leave the schema out: it is {own.simpleString()}, or less by the option columns",
        )
