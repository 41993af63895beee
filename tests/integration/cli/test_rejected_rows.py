"""`load --on-error skip` writes the rows that it rejects to a file, says so, and ends with a code of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest

from scankv.cli.rejects import RejectedRows
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rejected_rows_of_csv_are_corrected_and_loaded_again(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    good, bad = ["dan;1", "hal;4"], ["eve;x", '"fay, ""jr""";y', ";3", "gil;2;3", '"";z', '" ";8;']
    (tmp_path / "more.csv").write_text("player;score\n" + "\n".join([good[0], *bad, good[1]]) + "\n")
    finished = scankv("load", scores, "more.csv", "--on-error", "skip", code=3)
    assert finished.text.startswith("loaded 2 rows into ")
    assert finished.stderr.splitlines()[-1] == "skipped 6 bad rows: see more.csv.rejected"
    rejected = tmp_path / "more.csv.rejected"
    header, *lines = rejected.read_text().splitlines()
    assert header == "player;score"
    assert sorted(lines) == sorted(bad)
    rejected.write_text(rejected.read_text().replace('""";y', '""";3'))
    assert scankv("load", scores, "more.csv.rejected", "--on-error", "skip", code=3).text.startswith("loaded 1 row ")
    assert scankv("count", scores, "--where", "player = 'fay, \"jr\"' AND score = 3").text == "1\n"


def test_quoted_text_that_means_null_without_quotes_stays_quoted(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    scankv("create", table, "--schema", "id int64 not null, name string", "--key", "id")
    (tmp_path / "rows.csv").write_text('id,name\nx,"NA"\ny,NA\nz,"none"\n')
    skip = ["--on-error", "skip", "--null", "none"]
    scankv("load", table, "rows.csv", *skip, "--null", "NA", code=3)
    assert (tmp_path / "rows.csv.rejected").read_text() == 'id,name\nx,"NA"\ny,\nz,"none"\n'


def test_rejected_lines_of_json_are_kept_as_they_were(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    bad = ['{"player": "eve",  "score": "x"}', "{bad", '{"score":1}']
    text = "\n".join(['{"player":"dan"}', *bad])
    scankv("load", scores, "-", "--on-error", "skip", "--rejected", "kept.jsonl", stdin=text, code=3)
    assert (tmp_path / "kept.jsonl").read_text() == "\n".join(bad) + "\n"


def test_rejected_rows_of_a_typed_file_are_json_objects(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"player": ["dan", None], "score": [1, 2]}), tmp_path / "rows.parquet")
    scankv("load", scores, "rows.parquet", "--on-error", "skip", code=3)
    assert (tmp_path / "rows.parquet.rejected").read_text() == '{"player":null,"score":2}\n'


def test_a_load_without_bad_rows_leaves_no_file_and_ends_with_0(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    skip = ["--on-error", "skip", "--rejected", "kept.csv"]
    assert scankv("load", scores, "-", *skip, stdin="player,score\ndan,1\n").stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_for_rejected_rows_that_cannot_be_used_is_refused(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    text = "player,score\ndan,x\n"
    (tmp_path / "rows.csv").write_text(text)
    skip = ["--on-error", "skip", "--rejected"]
    assert "the file that is loaded, rows.csv" in scankv.fails("load", scores, "rows.csv", *skip, "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == text
    message = scankv.fails("load", scores, "rows.csv", *skip, "none/rejected")
    assert "cannot be written to none/rejected: No such file or directory; name another file with --rejected" in message
    assert "add it" in scankv.fails("load", scores, "rows.csv", "--rejected", "x")


def test_rows_from_standard_input_do_not_replace_the_file_that_they_come_from(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    text = "player,score\ndan,x\n"
    source = tmp_path / "stdin.rejected"
    source.write_text(text)
    for rejected, message in (
        ([], "standard input needs --rejected PATH"),
        (["--rejected", "stdin.rejected"], "the file that is loaded, standard input"),
    ):
        with source.open("rb") as stdin:
            process = scankv.start(
                *("load", scores, "-", "--on-error", "skip", *rejected), stdin=stdin.fileno(), stderr=subprocess.PIPE
            )
            assert message in process.communicate()[1].decode()
        assert process.returncode == 1
        assert source.read_text() == text


def test_an_existing_file_is_replaced_only_if_it_is_named(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("player,score\ndan,1\neve,x\n")
    rejected = tmp_path / "rows.csv.rejected"
    rejected.write_text("corrected")
    message = scankv.fails("load", scores, "rows.csv", "--on-error", "skip")
    assert message == "rows.csv.rejected exists: remove it, or replace it with --rejected rows.csv.rejected"
    assert rejected.read_text() == "corrected"
    assert scankv("count", scores, "--where", "player = 'dan'").text == "0\n"
    scankv("load", scores, "rows.csv", "--on-error", "skip", "--rejected", "rows.csv.rejected", code=3)
    assert rejected.read_text() == "player,score\neve,x\n"


@pytest.mark.parametrize("source", [".", "..", "../rows"])
def test_the_rejected_rows_of_a_directory_have_its_name(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "rows" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner if source == ".." else inner.parent)
    assert RejectedRows(source, None).path.name == "rows.rejected"


def test_a_full_disk_is_one_error(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("player,score\nfay,1\neve,x\n")
    finished = scankv("load", scores, "rows.csv", "--on-error", "skip", "--rejected", "/dev/full", code=1)
    assert finished.stderr.splitlines()[-2:] == [
        f"stopped: 1 row is in {scores}",
        "scankv: error: the rejected rows cannot be written to /dev/full: No space left on device; name another file "
        "with --rejected",
    ]


def test_a_full_disk_does_not_hide_an_earlier_error() -> None:
    def reject_and_fail() -> None:
        with RejectedRows("rows.csv", Path("/dev/full")) as rejects:
            rejects.write(b"player", b"eve")
            raise KeyError

    with pytest.raises(KeyError):
        reject_and_fail()


def test_a_file_that_cannot_be_looked_at_is_refused_when_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="cannot be written to file/x: Not a directory"),
        RejectedRows("rows.csv", Path("file/x")) as rejects,
    ):
        rejects.write(b"player", b"eve")


def test_a_load_that_stops_names_the_rejected_rows(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    # The second row is in another block than the first one.
    (tmp_path / "rows.csv").write_bytes(b"player,score\neve,x\n" + b"\n" * (5 << 20) + b"\xff,1,2\n")
    finished = scankv("load", scores, "rows.csv", "--on-error", "skip", code=1)
    assert finished.stderr.splitlines()[-2] == "skipped 1 bad row: see rows.csv.rejected"
    assert "convert the file to UTF-8" in finished.stderr
    assert (tmp_path / "rows.csv.rejected").read_text() == "player,score\neve,x\n"


def test_a_value_that_makes_a_column_text_is_named_in_a_warning(scankv: CommandLine, table: str) -> None:
    text = "id,n,day,name\n1,5,2024-01-31,a\n2,n.a.,2024-02-30,b\n3,7,2024-03-01,c\n"
    created = scankv("load", table, "-", "--create", "--key", "id", stdin=text)
    assert created.text.startswith(f"created {table}: id int64 not null, n string, day string, name string\n")
    assert created.stderr.splitlines() == [
        f'scankv: warning: standard input: the column "{column}" is string, because row 3 has "{value}", while all '
        f"rows before it fit {type_}; to have {type_}, create the table first, or name the text with --null"
        for column, value, type_ in (("n", "n.a.", "int64"), ("day", "2024-02-30", "date32[day]"))
    ]
    again = scankv("load", table + "_2", "-", "--create", "--key", "id", "--null", "n.a.", stdin=text)
    assert "n int64" in again.text
    assert '"n"' not in again.stderr
