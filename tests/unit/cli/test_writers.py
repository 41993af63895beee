from __future__ import annotations

import gc
import io
import os
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest

from scankv.formats.files import Format
from scankv.formats.writers import atomic_directory, atomic_file, row_writer
from scankv.model.errors import UsageError
from tests.unit.cli.reading import read
from tests.unit.cli.test_text import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table(COLUMNS).drop_columns("hundreds")


@pytest.mark.parametrize("seekable", [False, True])
@pytest.mark.parametrize("format_", Format)
def test_what_is_written_is_read_back(tmp_path: Path, format_: Format, seekable: bool) -> None:
    path = tmp_path / f"rows.{format_}"
    with path.open("wb") as stream:
        with row_writer(format_, stream, ROWS.schema, seekable=seekable) as writer:
            for rows in [*ROWS.to_batches(max_chunksize=2), *ROWS.to_batches()]:
                writer.write(rows)
    assert read(path, ROWS.schema).rows.equals(pa.concat_tables([ROWS, ROWS]))


@pytest.mark.parametrize("format_", Format)
def test_no_rows_are_a_file_too(tmp_path: Path, format_: Format) -> None:
    path = tmp_path / f"rows.{format_}"
    with path.open("wb") as stream:
        with row_writer(format_, stream, ROWS.schema):
            pass
    assert read(path, ROWS.schema).rows.equals(ROWS.schema.empty_table())


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("format_", [Format.PARQUET, Format.ARROW])
def test_an_output_that_breaks_off_is_not_taken_for_a_complete_one(
    tmp_path: Path, format_: Format, is_closed: bool
) -> None:
    def break_off() -> None:
        with row_writer(format_, stream, ROWS.schema, seekable=True) as writer:
            writer.write(ROWS.to_batches()[0])
            raise InterruptedError

    stream = (tmp_path / "rows").open("w+b")
    with pytest.raises(InterruptedError) as ended:
        break_off()
    if is_closed:
        stream.close()
    # What the writers of pyarrow do at their end must neither fail nor complete the output.
    del ended
    gc.collect()
    stream.close()
    with pytest.raises(pa.ArrowInvalid), (tmp_path / "rows").open("rb") as written:
        pa.parquet.read_table(written) if format_ is Format.PARQUET else pa.ipc.open_file(written)


def test_columns_that_parquet_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match=r'"hundreds": Parquet cannot hold decimal128.10, -2.: Scale must be'):
        with row_writer(Format.PARQUET, io.BytesIO(), pa.table(COLUMNS).schema):
            pass


def test_parquet_joins_chunks_into_large_row_groups() -> None:
    stream = io.BytesIO()
    chunk = pa.record_batch({"a": range(8192)})
    with row_writer(Format.PARQUET, stream, chunk.schema) as writer:
        for _ in range(40):
            writer.write(chunk)
    metadata = pa.parquet.read_metadata(stream)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [
        131_072,
        131_072,
        65_536,
    ]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with atomic_file(path) as stream:
        stream.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_what_is_replaced_keeps_its_permissions_and_nobody_reads_it_before(tmp_path: Path, mode: int) -> None:
    file, directory = tmp_path / "out.csv", tmp_path / "out"
    file.write_bytes(b"old")
    file.chmod(mode)
    directory.mkdir(mode=0o700)
    with atomic_file(file) as stream, atomic_directory(directory) as part:
        assert os.fstat(stream.fileno()).st_mode & 0o077 == part.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o777 == mode
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "out.csv"
    path.write_bytes(b"old")
    with pytest.raises(failure), atomic_file(path) as stream:  # noqa: PT012  # the write is part of what fails
        stream.write(b"new")
        raise failure
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(path.read_bytes()))
    thread.start()
    with atomic_file(path) as stream:
        stream.write(b"rows")
    thread.join(10)
    assert received == [b"rows"]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_directory_is_there_when_it_is_whole_and_the_one_before_until_then(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    path = tmp_path / "parts"

    def files() -> list[str]:
        return sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))

    for name in ("first", "second"):
        with atomic_directory(path) as directory:
            (directory / name).write_text(name)
            assert not (path / name).exists()
        assert files() == ["parts", f"parts/{name}"]
    with pytest.raises(failure), atomic_directory(path) as directory:  # noqa: PT012  # the write is part of what fails
        (directory / "third").write_text("half of it")
        raise failure
    assert files() == ["parts", "parts/second"]
