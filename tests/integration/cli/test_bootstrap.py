"""`scankv load --bootstrap` makes a table from a table or from files in an open format."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from aio_client import BootstrapProgress, sync
from scankv.cli.bootstrapping import progress_text
from scankv.formats import file_memory
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

ROWS = pa.table({"id": pa.array(range(1000)), "v": [n % 7 for n in range(1000)]})


@pytest.mark.parametrize("format_", ["delta", "parquet"])
def test_a_table_is_made_from_an_open_format(scankv: CommandLine, table: str, tmp_path: Path, format_: str) -> None:
    source = tmp_path / "source"
    if format_ == "delta":
        deltalake.write_deltalake(source, ROWS)
    else:
        source.mkdir()
        parquet.write_table(ROWS, source / "rows.parquet")
    made = scankv("load", table, str(source), "--bootstrap", "--key", "id", "--buckets", "3", "--set", "changelog=none")
    assert re.fullmatch(
        rf"created {table}: id int64 not null, v int64\nloaded 1,000 rows into {table} in [\d.]+ s \([\d,]+ rows/s\)\n",
        made.text,
    )
    assert scankv("count", table).text.strip() == "1000"
    described = scankv("describe", table, "--json").json
    assert (described["buckets"], described["options"]) == (3, {"changelog": "none"})
    assert "exists already" in scankv.fails("load", table, str(source), "--bootstrap", "--key", "id")


def test_rows_with_the_same_key_are_an_error_or_merged(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    file = str(tmp_path / "rows.parquet")
    parquet.write_table(ROWS, file)
    command = "load", table, file, "--bootstrap", "--key", "v"
    assert re.search(r"have the key v=[0-6]: correct the source", scankv.fails(*command))
    merged = scankv(*command, "--duplicates", "merge").text
    assert f"loaded 1,000 rows into {table}, merged to 7 in" in merged


@pytest.mark.parametrize(
    "options",
    [["--create", "--key", "id"], [], ["--key", "id", "--delimiter", ";"], ["--key", "id", "--no-track-changes"]],
)
def test_options_that_a_bootstrap_does_not_have_are_refused(
    scankv: CommandLine, table: str, tmp_path: Path, options: list[str]
) -> None:
    refused = scankv.fails("load", table, str(tmp_path), "--bootstrap", *options)
    assert "--bootstrap needs --key, and takes only --buckets" in refused
    assert "--duplicates is for --bootstrap" in scankv.fails("load", table, "-", "--duplicates", "merge")


def test_the_files_of_a_table_are_not_loaded_as_if_all_of_them_counted(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    deltalake.write_deltalake(tmp_path / "t", ROWS)
    deltalake.DeltaTable(tmp_path / "t").delete("id >= 10")
    refused = scankv.fails("load", table, str(tmp_path / "t"), "--create", "--key", "id")
    assert "the directory has _delta_log, so it is a table" in refused
    assert "load it with --bootstrap" in refused
    scankv("load", table, str(tmp_path / "t"), "--bootstrap", "--key", "id")
    assert scankv("count", table).text.strip() == "10"


def test_the_progress_says_how_much_is_left() -> None:
    sent = BootstrapProgress(rows=1_000_000, bytes=25_000_000, total_rows=2_000_000, elapsed=5.0)
    assert progress_text(sent) == "1,000,000 rows, 25 MB sent, 15 s left"
    merging = BootstrapProgress(rows=2_000_000, bytes=50_000_000, total_rows=2_000_000, merged_rows=10, elapsed=5.0)
    assert progress_text(merging) == "2,000,000 rows, 50 MB sent, 10 rows merged, 5 s left"
    assert progress_text(BootstrapProgress(rows=1, bytes=10)) == "1 row, 0 MB sent"
    resumed = BootstrapProgress(
        rows=1_500_000, bytes=50_000_000, total_rows=2_000_000, resumed_rows=1_000_000, elapsed=5.0
    )
    assert progress_text(resumed) == "1,500,000 rows, 50 MB sent, 1,000,000 rows of them before, 25 s left"


@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.breadth
def test_an_interrupted_command_says_how_to_continue(
    server: ServerProcess, tmp_path: Path, signal_: signal.Signals, code: int
) -> None:
    source, scankv = tmp_path / "rows.parquet", CommandLine(server.url)
    parquet.write_table(pa.table({"id": pa.array(range(1_000_000))}), source)
    command = "load", "cli.t", str(source), "--bootstrap", "--key", "id"
    with scankv.start(*command) as process:
        wait_until(lambda: staged_bytes(server) > 3_000_000, "several requests are staged")
        # So that it cannot come to its end.
        os.kill(server.process.pid, signal.SIGSTOP)
        process.send_signal(signal_)
        assert process.wait(60) == code
        os.kill(server.process.pid, signal.SIGCONT)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    message = (
        rf"interrupted: the server keeps ([\d,]+) rows of {re.escape(str(source))} for a day: the same command "
        r"continues after them, and with --from-scratch it discards them"
    )
    told = re.search(message, said)
    assert told, said
    loaded = re.search(r"loaded 1,000,000 rows, ([\d,]+) of them before, into cli\.t in", scankv(*command).text)
    assert loaded
    kept, resumed = (int(each[1].replace(",", "")) for each in (told, loaded))
    assert 0 < kept <= resumed < 1_000_000
    assert scankv("count", "cli.t").text == "1000000\n"


def staged_bytes(server: ServerProcess) -> int:
    return sum(file.stat().st_size for file in (server.data_dir / "bootstraps").glob("*/staged"))


def test_a_command_refuses_a_source_that_has_changed_or_begins_from_scratch(
    server: ServerProcess, tmp_path: Path
) -> None:
    source, scankv = tmp_path / "rows.parquet", CommandLine(server.url)
    parquet.write_table(pa.table({"id": pa.array(range(300_000))}), source)

    def stop(_: BootstrapProgress) -> None:
        raise InterruptedError

    with sync.connect(server.url) as client, pytest.raises(InterruptedError):
        client.bootstrap("cli.t", source, primary_key=["id"], on_progress=stop)
    parquet.write_table(ROWS, source)
    command = "load", "cli.t", str(source), "--bootstrap", "--key", "id"
    assert "this one reads Parquet files in the state" in scankv.fails(*command)
    assert "loaded 1,000 rows into cli.t" in scankv(*command, "--from-scratch").text
    assert "--from-scratch is for --bootstrap" in scankv.fails("load", "cli.t", "-", "--from-scratch")


@pytest.mark.parametrize("format_", ["delta", "iceberg", "parquet"])
@pytest.mark.represented_by("delta")
def test_a_short_table_that_means_gigabytes_is_refused(
    scankv: CommandLine, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setattr(file_memory, "_BASE_BYTES", 300 << 20)
    source = tmp_path / "t"
    source.mkdir()
    file = source / "a.parquet"
    # A hundred gigabytes, as a megabyte and where it is.
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * (1 << 20)])
    parquet.write_table(pa.table({"id": range(100_000), "s": repeated}), file, compression="zstd", store_schema=False)
    location = str(source)
    columns = pa.schema([("id", pa.int64()), ("s", pa.string())])
    if format_ == "delta":
        deltalake.DeltaTable.create(location, columns)
        add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1}
        stats = json.dumps({"numRecords": 100_000})
        commit = source / "_delta_log" / f"{1:020}.json"
        commit.write_text(json.dumps({"add": {**add, "dataChange": True, "stats": stats}}))
    elif format_ == "iceberg":
        with closing(SqlCatalog("other", uri="sqlite://", warehouse=str(tmp_path))) as catalog:
            catalog.create_namespace("n")
            made = catalog.create_table("n.t", columns, location=f"file://{source}")
            made.add_files([str(file)])
            location = made.metadata_location.removeprefix("file://")
    said = scankv.fails("load", table, location, "--bootstrap", "--key", "id")
    assert "a part of it needs more memory than is available or allowed" in said
