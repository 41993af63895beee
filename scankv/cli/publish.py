"""`publish`: keeps a copy of a table in an open format, for programs that read files."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scankv.cli.connecting import PROFILE, check_listening
from scankv.cli.options import TableName, Url
from scankv.cli.outcome import complain, run_async
from scankv.cli.snapshots import parse_duration
from scankv.formats.amounts import size
from scankv.model.counts import counted
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.lake.publisher import PublishReport
    from scankv.model.errors import ScanKvError


class Deletes(StrEnum):
    """What happens to changed rows in published files."""

    FILES = "files"
    VECTORS = "vectors"


class LakeFormat(StrEnum):
    """Open formats of a published table."""

    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


def publish(
    table: TableName,
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI", help="A directory, or a URI such as s3://bucket/tables/scores.", show_default=False
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Publish once, which is the default.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Publish again after so many seconds, until Ctrl-C or SIGTERM."),
    ] = None,
    format_: Annotated[LakeFormat, typer.Option("--format", help="The format.")] = LakeFormat.DELTA,
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:TABLE",
            help="The catalog of an Iceberg table, from the configuration of pyiceberg, and its name there: "
            "prod:game.scores. Default: a file beside the table.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Write all rows again, whatever has changed.")] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions/--no-partitions", help="Keep the partitions of the table.")
    ] = True,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Publish the changes of the table, to which each version adds, not its rows."),
    ] = False,
    deletes: Annotated[
        Deletes,
        typer.Option(
            help="Replace files with changed rows, or mask the rows with deletion vectors, if all readers know them."
        ),
    ] = Deletes.FILES,
    keep_for: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long files remain for readers of earlier versions: 90s, 10m, 2h, 7d."),
    ] = "7d",
    json_: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --every, an object for each version.")
    ] = False,
    url: Url = None,
) -> None:
    """Publish a table in an open format, such as Delta Lake: all buckets as of one instant, as one version.

    Files whose rows have not changed since the last version are kept.
    """
    # Imported on use: the list of commands must not wait for it.
    from aio_client import connect
    from scankv.lake.formats import open_lake_table
    from scankv.lake.publisher import PublishOptions
    from scankv.lake.schedule import publish_every, publish_once

    if once and every is not None:
        raise UsageError("--once and --every exclude each other: give one of them")
    if deletes is Deletes.VECTORS and format_ is not LakeFormat.DELTA:
        raise UsageError("--deletes vectors needs --format delta: other formats replace files")
    lake = open_lake_table(uri, format_.value, parse_duration(keep_for, unit_for="--keep-for"), catalog)
    options = PublishOptions(
        is_full=full,
        partitioned=partitions,
        content="changes" if changes else "rows",
        masks=deletes is Deletes.VECTORS,
    )

    async def run() -> None:
        async with connect(url, profile=PROFILE.get()) as client:
            if every is None:
                check_listening(client.config)
                _show(await publish_once(client, table, lake, options), as_json=json_)
            else:
                await publish_every(
                    client, table, lake, every, options=options, on_report=on_report, on_failure=on_failure
                )

    def on_report(report: PublishReport) -> None:
        if report.mode != "unchanged":
            _show(report, as_json=json_)

    def on_failure(error: ScanKvError) -> None:
        complain(f"{error.message} (next try in {every:g} s)")

    run_async(run())


def _show(report: PublishReport, *, as_json: bool) -> None:
    if as_json:
        values: dict[str, Any] = asdict(report) | {"log_offsets": json.loads(report.log_offsets.to_json())}
        typer.echo(json.dumps(values))
    elif report.mode == "unchanged":
        typer.echo(f"{report.table}: nothing has changed since version {report.version}")
    else:
        why = "" if report.reason is None else f"; all rows, because {report.reason}"
        typer.echo(
            f"{report.table}: version {report.version} as of {report.taken_at[:19]} UTC, "
            f"{counted(report.rows, 'row')} in {counted(report.files_added, 'file')} written "
            f"({size(report.bytes)}), {counted(report.files_kept, 'file')} kept, in {report.elapsed:.1f} s{why}"
        )
    sys.stdout.flush()  # a reader of a pipe sees each version when it is committed
