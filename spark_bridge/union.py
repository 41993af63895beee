"""`table`: a published table as a DataFrame, whose files Spark reads itself, with what has changed since."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import LakeError, LakeUnavailable, UsageError
from spark_bridge.changed_key_filter import ChangedKeyFilter, quoted
from spark_bridge.dataframe import scan_dataframe
from spark_bridge.memory_rows import broadcast_rows, memory_rows, session_options
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from aio_client import Snapshot, Tls, TokenEnv, TokenFile, sync
    from scankv.lake.lake_table import DataFile
    from scankv.lake.union.plan import UnionPlan

_log: Final = logging.getLogger(__name__)
_LISTING_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_VERIFIED: Final = {"parquet.page.verify-checksum.enabled": "true"}
"""Parquet for Java verifies the checksums of pages only with this option."""
_GLOB: Final = frozenset("*?[]{}\\")
_FILE_SYSTEMS: Final = {"s3a": "hadoop-aws", "gs": "hadoop-gcp", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""The packages that read what PySpark alone does not, by the scheme of URIs."""
_NO_FILE_SYSTEM: Final = re.compile(r"Class \S*FileSystem\S* not found|No FileSystem for scheme")


def table(
    spark: SparkSession,
    url: str | None,
    table: str,
    *,
    lake: str,
    columns: Sequence[str] | None = None,
    snapshot: Snapshot | sync.Snapshot | str | None = None,
    as_of: datetime | int | None = None,
    profile: str | None = None,
    token: os.PathLike[str] | TokenFile | TokenEnv | None = None,
    tls: bool | Tls | None = None,
) -> DataFrame:
    """Returns a table as a DataFrame, of which Spark reads the published files itself, in parallel.

    The server sends only what has changed since `scankv publish` wrote the files; this call reads it and keeps it in
    memory, at most 256 MiB. All queries on the DataFrame see the table as of one instant: that of the snapshot, or of
    this call. They need no server, so retries and later stages cannot see another instant. Spark selects columns and
    evaluates filters in the files, as with any Parquet.

    Where the published table cannot be used, as `scan.read_path` says, the result is that of `scan_dataframe`, and a
    warning is logged with the reason. Then each query sees the instant of the query, or that of the snapshot.

    Args:
        spark: The session. Spark Connect works, too.
        url: The server, `host:port`. None: as for `scankv.connect` in this process.
        table: `database.table`.
        lake: Where the table is published: a directory that this process and all executors have, or a URI such as
            `s3://bucket/tables/scores`, which Spark reads as `s3a://`. Spark needs `hadoop-aws` for that, and takes
            credentials from the environment of its JVM or from options `fs.s3a.*`.
        columns: The columns to read, in this order. Default: all.
        snapshot: A pinned snapshot to read, or its id. Default: as of now.
        as_of: An earlier version to read alone, as for `scan.as_of`: a time with a time zone, or a number. The server
            is not read instead of it. Default: none.
        profile: As for `scankv.connect`; read in this process.
        token: As for `scan_dataframe`.
        tls: As for `scan_dataframe`.

    Returns:
        A DataFrame with the selected columns, in the types of the data source. The order of its rows is not defined.
        Its queries fail once the files of the version have been deleted, which `scankv publish` does `--keep-for`
        after they were replaced.

    Raises:
        UsageError: Spark lacks the package that reads the location; the message names it.
        LakeVersionNotFound: With `as_of`, no such version can be read.
        ScanKvError: An argument is wrong, the server cannot be reached, or a column has no Spark type.
    """
    from aio_client import sync
    from aio_client._transport.tokens import token_source
    from scankv.lake.union.plan import ServerAloneError, plan_union

    with sync.connect(url, profile=profile, token=token_source(token), tls=tls) as client:
        scan = client.table(table).scan(columns).read_path("lake", lake)
        scan = scan if snapshot is None else scan.as_of(snapshot)
        scan = scan if as_of is None else scan.as_of(as_of)
        try:
            plan = client._runner.call(plan_union, client._runner.client._transport, scan.spec)
            return _UnionFrame(spark, plan).build()
        except (ServerAloneError, LakeError) as error:
            if as_of is not None:
                raise error if isinstance(error, LakeError) else UsageError(f"as_of cannot be used: {error}") from error
            _log.warning("table %s is read from the server, and not from the files in %s: %s", table, lake, error)
    return scan_dataframe(spark, url, table, columns=columns, snapshot=snapshot, profile=profile, token=token, tls=tls)


class _UnionFrame:
    """Builds the DataFrame of a union read."""

    def __init__(self, spark: SparkSession, plan: UnionPlan) -> None:
        self._spark = spark
        self._plan = plan
        self._schema = spark_schema(plan.schema)
        self._changed = ChangedKeyFilter(spark, plan.fresh.changed)

    def build(self) -> DataFrame:
        """Returns the DataFrame. Raises ServerAloneError if Spark cannot read the files as rows of the table."""
        fresh = memory_rows(self._spark, self._plan.fresh.rows.select(self._schema.names))
        published = self._published()
        return fresh if published is None else published.select(*map(quoted, self._schema.names)).union(fresh)

    def _published(self) -> DataFrame | None:
        """Returns the rows of the files that still count, with the columns of the answer and of the key."""
        found = None
        for files in self._groups():
            rows = self._read(files)
            rows = self._changed.remaining(rows) if self._has_changed(files[0]) else rows
            found = rows if found is None else found.union(rows)
        return found

    def _groups(self) -> Iterator[list[DataFile]]:
        """Yields files that Spark can read together, because the same columns and anti joins are needed."""
        groups = defaultdict(list)
        for file in (file for bucket in self._plan.buckets for file in self._plan.files(bucket)):
            sources = self._plan.published.sources(file, self._plan.columns)
            groups[(tuple(sources.values()), bool(file.masked_rows), self._has_changed(file))].append(file)
        yield from groups.values()

    def _has_changed(self, file: DataFile) -> bool:
        """Returns whether a key between the first and the last one of a file has changed."""
        keys = self._plan.fresh.keys.get(file.bucket)
        return keys is not None and len(keys.within(file.first_key, file.last_key)) > 0

    def _read(self, files: Sequence[DataFile]) -> DataFrame:
        from pyspark.sql import functions as F

        types, location = self._types_in(files[0]), self._plan.published.lake.location
        paths = [_spark_path(location.root_uri, file.path) for file in files]
        read = self._spark.read.schema(types).options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
        read = read.options(**_s3a_options(location.object_store_options()), **_VERIFIED)
        with _listing_here(self._spark, paths), self._translate_errors(paths[0]):
            rows = read.parquet(*paths)
            rows.schema  # noqa: B018  # Spark Connect looks for the files only now
        if files[0].masked_rows:
            masked = broadcast_rows(self._spark, self._masked(files))
            place = [F.col("_metadata.file_name") == masked["file"], F.col("_metadata.row_index") == masked["row"]]
            rows = rows.join(masked, place, "left_anti")
        return rows.select(*self._selected(files[0], types))

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Says in one line why Spark cannot find a file, instead of a stack trace of the JVM.

        Raises:
            UsageError: Spark does not know this kind of location.
            LakeUnavailable: Spark does not reach the location, or does not find the file there.
        """
        try:
            yield
        except Exception as error:  # those of py4j, which may not be installed, are no PySparkException
            thrown = getattr(error, "java_exception", None)
            reason = str(error if thrown is None else thrown.getMessage()).partition("\n")[0]
            if not _NO_FILE_SYSTEM.search(reason):
                raise LakeUnavailable(
                    f"Spark cannot read {path} ({reason}): see to its access to the location"
                ) from error
            package = _FILE_SYSTEMS.get(path.partition(":")[0])
            packages = "the package that has it"
            if package is not None:
                packages = f"spark.jars.packages=org.apache.hadoop:{package}:{self._hadoop_version()}"
            raise UsageError(
                f"Spark cannot read {path}, because it lacks the file system ({reason}): start it with {packages}",
                option="lake",
            ) from error

    def _hadoop_version(self) -> str:
        """Returns the version of Hadoop in Spark, also where it runs in another process."""
        found = self._spark.sql("SELECT java_method('org.apache.hadoop.util.VersionInfo', 'getVersion')").first()
        assert found is not None
        version: str = found[0]
        return version

    def _masked(self, files: Sequence[DataFile]) -> pa.Table:
        """Returns the file and the position of each masked row."""
        parts = []
        for file in files:
            rows = pa.array(self._plan.published.masked_positions(file), pa.int64())
            names = pa.repeat(file.path.rpartition("/")[2], len(rows))
            parts.append(pa.table({"file": names, "row": rows}))
        return pa.concat_tables(parts)

    def _types_in(self, file: DataFile) -> StructType:
        """Returns the columns of a file that are read, with Spark's types."""
        from scankv.lake.union.plan import ServerAloneError

        found = self._plan.published.file_schema(file)
        names = self._plan.published.sources(file, self._plan.columns).values()
        fields = [found.field(name) for name in names if name is not None]
        for each in fields:
            if _lacks_reader(each.type):
                raise ServerAloneError(f'Spark does not read {each.type} from Parquet, as column "{each.name}" has it')
        return spark_schema(pa.schema(fields))

    def _selected(self, file: DataFile, types: StructType) -> list[Column]:
        """Returns the columns of the answer and of the key, in the types of the table."""
        from pyspark.sql import functions as F

        from scankv.lake.union.plan import ServerAloneError

        selected = []
        for name, source in self._plan.published.sources(file, self._plan.columns).items():
            column = self._plan.columns[name]
            (wanted,) = spark_schema(pa.schema([column.field]))
            if source is None:
                value = None if column.default is None else column.default.as_py()
                found = F.lit(value)
            else:
                found = F.col(quoted(source))
            is_same = source is not None and types[source].dataType == wanted.dataType
            if not is_same and pat.is_nested(column.field.type):
                raise ServerAloneError(f'column "{name}" has another nested type than in the files')
            selected.append((found if is_same else found.cast(wanted.dataType)).alias(name))
        return selected


def _s3a_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options by which Spark finds an object store that the URI of the location names."""
    found = {"fs.s3a.endpoint.region": options["region"]} if "region" in options else {}
    if "endpoint" in options:
        found |= {"fs.s3a.endpoint": options["endpoint"], "fs.s3a.path.style.access": "true"}
    return found


@contextmanager
def _listing_here(spark: SparkSession, paths: Sequence[str]) -> Iterator[None]:
    """Makes Spark look up local files in its own process: a task for each of them takes many times as long."""
    if not paths[0].startswith("file:"):
        yield
        return
    threshold = spark.conf.get(_LISTING_THRESHOLD)
    assert threshold is not None
    with session_options(spark, {_LISTING_THRESHOLD: str(max(int(threshold), len(paths)))}):
        yield


def _spark_path(root: str, path: str) -> str:
    """Returns a file of a published table as Spark names it."""
    from scankv.lake.union.plan import ServerAloneError

    full = f"{root}/{path}"
    if _GLOB & set(full):
        raise ServerAloneError("the location has a character that Spark takes as a pattern")
    if "://" not in full:
        return f"file://{full}"
    return f"s3a://{full.removeprefix('s3://')}" if full.startswith("s3://") else full


def _lacks_reader(type_: pa.DataType) -> bool:
    """Returns whether Spark's Parquet reader cannot read values of a type, at any depth."""
    if pat.is_nested(type_):
        return any(_lacks_reader(type_.field(number).type) for number in range(type_.num_fields))
    return bool(pat.is_float16(type_) or (pat.is_timestamp(type_) and type_.unit == "ns"))
