"""Converts data files with timestamps of the type INT96 for pyiceberg, which would read them in nanoseconds.

Iceberg does not allow this type, but tables that Spark has migrated from Hive may have such files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.io import FileIO, InputFile

from scankv.model.types.int96 import COARSE, FINE, exact_int96, has_int96, int96_columns

if TYPE_CHECKING:
    from pyiceberg.io import InputStream, OutputFile

_MAGIC: Final = b"PAR1"


class ReadsInt96(FileIO):
    """Reads files as another `FileIO` does, and shows INT96 in Parquet files as microseconds, the unit of Iceberg.

    A file with INT96 is converted in memory when it is opened. Threads may use an object concurrently.
    """

    def __init__(self, io: FileIO) -> None:
        super().__init__(io.properties)
        self._io = io

    def new_input(self, location: str) -> InputFile:
        """Returns a file to read."""
        return _ConvertedInput(self._io.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        """Returns a file to write."""
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Deletes a file."""
        self._io.delete(location)


class _ConvertedInput(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        stream = self._file.open(seekable=True)
        stream.seek(max(len(self) - len(_MAGIC), 0))
        is_parquet = stream.read(len(_MAGIC)) == _MAGIC
        stream.seek(0)
        if not is_parquet or not has_int96(parquet.read_metadata(stream)):
            stream.seek(0)
            return stream
        with stream:
            converted: InputStream = pa.BufferReader(_converted(stream))
        return converted


def _converted(stream: InputStream) -> pa.Buffer:
    """Returns a Parquet file with microseconds in place of INT96."""
    coarse, fine = parquet.ParquetFile(stream, **COARSE), parquet.ParquetFile(stream, **FINE)
    names = int96_columns(coarse.schema_arrow, fine.schema_arrow)
    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, coarse.schema_arrow) as writer:
        first = 0
        for batch, nanos in zip(coarse.iter_batches(), fine.iter_batches(columns=names), strict=True):
            writer.write_batch(exact_int96(batch, nanos, pa.schema([]), first))
            first += batch.num_rows
    return sink.getvalue()
