from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import struct
import termios
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from aio_client import sync
from scankv.formats import file_memory
from tests.support.command_line import CommandLine
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.unit.cli.test_text import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMATS = ["csv", "jsonl", "parquet", "arrow"]


@pytest.mark.parametrize("by_pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("csv-file", "arrow-pipe")
def test_every_type_survives_scan_and_load(
    scankv: CommandLine, table: str, tmp_path: Path, format_: str, by_pipe: bool
) -> None:
    columns = {name: column for name, column in COLUMNS.items() if name != "hundreds"}
    rows = pa.table({"id": [0, 1, 2], **columns})
    source, copy = tmp_path / "rows.parquet", tmp_path / f"copy.{format_}"
    pa.parquet.write_table(rows, source)
    scankv("load", table, str(source), "--create", "--key", "id")
    second = table + "_copy"
    schema = ", ".join(f'"{c["name"]}" {c["type"]}' for c in scankv("describe", table, "--json").json["columns"])
    scankv("create", second, "--schema", schema, "--key", "id", "--buckets", "1")
    if by_pipe:
        data = scankv("scan", table, "--format", format_).stdout
        scankv("load", second, "-", stdin=data)
    else:
        scankv("scan", table, "-o", str(copy))
        scankv("load", second, str(copy))
    final = scankv("scan", second, "--format", "arrow").stdout
    loaded = pa.ipc.open_stream(final).read_all().sort_by("id")
    assert loaded.to_pylist() == rows.to_pylist()


def test_a_load_without_the_role_says_that_nothing_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer, token = TokenIssuer(tmp_path / "tokens"), tmp_path / "token"
    monkeypatch.setenv("SCANKV_TOKEN_FILE", str(token))
    token.write_text(issuer.root)
    token.chmod(0o600)
    reader = issuer.create("read:*")
    with ServerProcess(tmp_path / "data", "--tokens", str(issuer.path)) as server:
        scankv = CommandLine(server.url)
        scankv("create", "game.scores", "--schema", "player string", "--key", "player")
        token.write_text(reader)
        said = scankv("load", "game.scores", "-", stdin="player\nann\nbob\n", code=1).stderr
    assert said.splitlines()[0] == "stopped: nothing was written to game.scores"


def test_a_file_with_semicolons_is_loaded_and_another_delimiter_can_be_given(scankv: CommandLine, scores: str) -> None:
    scankv("load", scores, "-", stdin="player;score\ndan;1\n")
    scankv("load", scores, "-", "--delimiter", ":", stdin="player:score\neve:2\n")
    assert scankv("count", scores).text == "5\n"
    created = scankv("load", scores + "_new", "-", "--create", "--key", "player", stdin="player;score\ndan;1\n").text
    assert created.startswith(f"created {scores}_new: player string not null, score int64\n")
    message = scankv.fails("load", scores + "_2", "-", "--create", "--key", "player", stdin="player:score\neve:2\n")
    assert message == (
        'standard input has no column "player", which --key names: its columns are "player:score"; if the fields are '
        "not separated by commas, give --delimiter"
    )
    assert "--delimiter is for csv" in scankv.fails("load", scores, "-", "--delimiter", ";", stdin='{"player":"a"}')


def test_load_without_tracking_of_changes_leaves_a_range(scankv: CommandLine, scores: str) -> None:
    text = scankv("load", scores, "-", "--no-track-changes", stdin="player,score\ndan,1\neve,2\n").text
    assert text.startswith(f"loaded 2 rows into {scores} in ")
    arguments = ("--from", "earliest", "--until", "latest", "--format", "jsonl")
    assert "track_changes=False" in scankv.fails("tail", scores, *arguments)
    shown = scankv("tail", scores, *arguments, "--untracked", "rescan").text
    assert '"player":"dan"' in shown
    assert '"player":"eve"' in shown


@pytest.mark.breadth
@pytest.mark.parametrize("format_", FORMATS)
def test_create_reads_standard_input_twice(scankv: CommandLine, scores: str, format_: str) -> None:
    copy = scores + "_copy"
    data = scankv("scan", scores, "--format", format_).stdout
    text = scankv("load", copy, "-", "--create", "--key", "player", stdin=data).text
    assert text.startswith(f"created {copy}: player string not null, score int64\nloaded 3 rows")


def test_a_bad_row_stops_with_its_place_and_the_rows_before_it_are_loaded(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("player,score\ndan,1\neve,x\nfay,2\n")
    message = scankv.fails("load", scores, str(path))
    assert message == f'{path}: row 3: column "score": "x" is not int64; 1 row before it was loaded'
    assert scankv("count", scores).text == "4\n"
    path.write_text("player,score\neve,x\n")
    assert scankv.fails("load", scores, str(path)).endswith('"x" is not int64; nothing was loaded')


def test_rows_that_the_server_would_refuse_are_skipped_too(
    scankv: CommandLine, scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"player": player}) for player in ("dan", "x" * 20_000, "eve", "y" * 20_000, "fay")]
    skip = ["--on-error", "skip", "--rejected", "rejected"]
    finished = scankv("load", scores, "-", *skip, stdin="\n".join(lines), code=3)
    assert finished.text.startswith("loaded 3 rows")
    assert (tmp_path / "rejected").read_text().splitlines() == [lines[1], lines[3]]
    assert [report.split(": ")[1] for report in finished.stderr.splitlines()[:2]] == ["line 2", "line 4"]
    assert "line 2" in scankv.fails("load", scores, "-", stdin="\n".join(lines))


def test_a_load_into_a_missing_table_says_how_to_create_it(scankv: CommandLine, scores: str) -> None:
    message = scankv.fails("load", f"{scores}_2", "-", stdin="player,score\nann,1\n")
    assert "does not exist" in message
    assert message.endswith("; to create it from the file, add --create and --key COLUMN")


def test_an_arrow_file_with_other_types_is_refused(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pa.parquet.write_table(pa.table({"player": ["dan", "eve"], "score": ["1", "2"]}), path)
    message = scankv.fails("load", scores, str(path))
    assert f'{path}: row 1: column "score"' in message


def test_options_of_a_new_table_need_create(scankv: CommandLine, scores: str) -> None:
    assert "--create needs" in scankv.fails("load", scores, "-", "--create", stdin="a\n1\n")
    assert "add --create" in scankv.fails("load", scores, "-", "--key", "player", stdin="a\n1\n")


def test_a_table_that_is_there_is_not_created_again(scankv: CommandLine, scores: str) -> None:
    assert scores in scankv.fails("load", scores, "-", "--create", "--key", "a", stdin="a\n1\n")


def test_a_column_of_no_storable_type_is_refused(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    path = tmp_path / "nulls.parquet"
    pa.parquet.write_table(pa.table({"a": [1], "b": pa.nulls(1)}), path)
    assert '"b"' in scankv.fails("load", table, str(path), "--create", "--key", "a")


@pytest.mark.parametrize(
    ("format_", "signal_"),
    [
        pytest.param("csv", signal.SIGINT, marks=pytest.mark.soak),
        ("jsonl", signal.SIGINT),
        ("csv", signal.SIGTERM),
    ],
)
@pytest.mark.breadth
def test_a_signal_ends_the_wait_for_more_input_and_what_is_in_is_reported(
    scankv: CommandLine, scores: str, format_: str, signal_: signal.Signals
) -> None:
    reader, writer = os.pipe()
    row, rows = ("p%d,1\n", 900_000) if format_ == "csv" else ('{"player":"p%d"}\n', 450_000)
    with scankv.start("load", scores, "-", "--format", format_, stdin=reader) as process, open(writer, "wb") as pipe:
        os.close(reader)
        # More than two blocks of 4 MiB, so that the command is busy writing.
        pipe.write(b"player,score\n" if format_ == "csv" else b"")
        pipe.write("".join(row % number for number in range(rows)).encode())
        pipe.flush()
        wait_until(lambda: unread(writer) == 0, "the input taken")
        with sync.connect(scankv.url) as client:
            wait_until(lambda: client.table(scores).count() > 3, "rows written")
        process.send_signal(signal_)
        assert process.wait(60) == (130 if signal_ == signal.SIGINT else 143)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    with sync.connect(scankv.url) as client:
        loaded = client.table(scores).count() - 3
    # The write in flight has a second to be answered; otherwise it may or may not be applied.
    told = re.fullmatch(rf"interrupted: ([\d,]+) rows are in {scores}(?:; up to ([\d,]+) more may be)?\n", said)
    assert told, said
    sure, unsure = (int((number or "0").replace(",", "")) for number in told.groups())
    assert sure <= loaded <= sure + unsure, (said, loaded)


@pytest.mark.breadth
def test_a_server_that_goes_away_leaves_a_number_of_rows(server: ServerProcess) -> None:
    scankv = CommandLine(server.url)
    scankv("create", "cli.gone", "--schema", "player string", "--key", "player")
    reader, writer = os.pipe()
    command = ("load", "cli.gone", "-", "--format", "jsonl")
    with scankv.start(*command, stdin=reader) as process, open(writer, "wb", buffering=0) as pipe:
        os.close(reader)
        pipe.write("".join(f'{{"player":"p{number}"}}\n' for number in range(300_000)).encode())
        with sync.connect(scankv.url) as client:
            wait_until(lambda: client.table("cli.gone").count() > 0, "rows written")
        server.kill()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert re.fullmatch(r"interrupted: [\d,]+ rows are in cli\.gone(; up to [\d,]+ more may be)?\n", said)


def unread(pipe: int) -> int:
    """Returns the number of unread bytes in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_times_of_any_year_survive_scan_and_load(scankv: CommandLine, table: str, format_: str) -> None:
    columns: dict[str, tuple[pa.DataType, list[str | None]]] = {
        "day": (pa.date32(), ["+10000-01-01", "-0001-12-31", "0000-01-01"]),
        "at": (pa.timestamp("us"), ["+294247-01-10T04:00:54.775807", "-0044-03-15T12:00:00.000000", None]),
        "instant": (pa.timestamp("s", "UTC"), ["+36812-02-20T00:36:16Z", "9999-12-31T23:59:59Z", None]),
    }
    schema = ", ".join(f'"{name}" {type_}' for name, (type_, _) in columns.items())
    for name in (table, table + "_copy"):
        scankv("create", name, "--schema", "id int64, " + schema, "--key", "id", "--buckets", "1")
    for row in range(3):
        texts = {name: texts[row] for name, (_, texts) in columns.items()}
        scankv("put", table, f"id={row}", *(f"{name}={text or ''}" for name, text in texts.items()))
    written = scankv("scan", table, "--format", format_).stdout
    assert b"range" not in written
    scankv("load", table + "_copy", "-", "--format", format_, stdin=written)
    arrow = [scankv("scan", name, "--format", "arrow").stdout for name in (table, table + "_copy")]
    first, second = (pa.ipc.open_stream(data).read_all() for data in arrow)
    assert first.equals(second)
    assert "+294247-01-10T04:00:54.775807" in scankv("get", table, "0").text


REPEATED = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * (1 << 20)])
"""A hundred gigabytes, as a megabyte and where it is."""


def write_zeros(file: Path) -> None:
    """Writes three gigabytes, which take a hundred kilobytes."""
    rows = pa.record_batch(dict.fromkeys("kabcde", np.zeros(1 << 26, np.int64)))
    with pa.ipc.new_file(file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)


def write_repeated(file: Path) -> None:
    rows = pa.table({"k": range(len(REPEATED)), "s": REPEATED})
    pa.parquet.write_table(rows, file, compression="zstd", store_schema=False)


ZEROS = ", ".join(f"{name} int64" for name in "kabcde")


@pytest.mark.parametrize(("write", "schema"), [(write_zeros, ZEROS), (write_repeated, "k int64, s string")])
@pytest.mark.parametrize("command", ["load", "replace"])
@pytest.mark.breadth
def test_a_short_file_that_means_gigabytes_is_refused_and_the_limit_ends_with_the_command(
    scankv: CommandLine,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    write: Callable[[Path], None],
    schema: str,
) -> None:
    monkeypatch.setattr(file_memory, "_BASE_BYTES", 300 << 20)
    file, before = tmp_path / "rows", resource.getrlimit(resource.RLIMIT_DATA)
    write(file)
    assert file.stat().st_size < 1 << 20
    scankv("create", table, "--schema", schema, "--key", "k")
    said = scankv.fails(command, table, str(file))
    assert "a part of it needs more memory than is available, or than a command may take for it, which is 1 GiB" in said
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert scankv("count", table).text == "0\n"
