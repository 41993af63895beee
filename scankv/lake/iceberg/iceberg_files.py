"""Data files in the form of Iceberg's manifests, with the statistics by which readers skip files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import DataFileStatistics
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    from scankv.lake.lake_table import DataFile


def iceberg_file(file: DataFile, path: str, schema: Schema, spec: PartitionSpec) -> IcebergFile:
    """Returns a new data file as a manifest has it.

    Args:
        file: The file, which was just written.
        path: Its complete path.
        schema: The columns of the table.
        spec: The partitions of the table.
    """
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.partitioning import partition_record_value
    from pyiceberg.typedef import Record

    values = [
        partition_record_value(field, value, schema) for field, value in zip(spec.fields, file.partition, strict=True)
    ]
    made: IcebergFile = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **_statistics(file, schema).to_serialized_dict(),
    )
    return made


def _statistics(file: DataFile, schema: Schema) -> DataFileStatistics:
    """Returns the statistics of a new file.

    Bounds are left out where a reader could take them wrongly: of floats with NaN, which Parquet leaves out of its
    bounds, and of all columns if Python cannot represent one of the values.
    """
    from pyiceberg.types import DoubleType, FloatType

    try:
        found = _collect(file, schema, {})
        found.to_serialized_dict()
    except (OverflowError, ValueError):
        found = _collect(file, schema, {"write.metadata.metrics.default": "counts"})
    columns = {field.field_id: field.name for field in schema.fields}
    for id_ in list(found.column_aggregates):
        is_float = isinstance(schema.find_type(id_), FloatType | DoubleType)
        if is_float and (id_ not in columns or columns[id_] in file.nan_columns):
            del found.column_aggregates[id_]
    return found


def _collect(file: DataFile, schema: Schema, properties: dict[str, Any]) -> DataFileStatistics:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    assert file.footer is not None
    return data_file_statistics_from_parquet_metadata(
        file.footer, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
    )
