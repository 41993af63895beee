"""How pyiceberg writes metadata on a local disk: durably, before the catalog names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from scankv.lake.location import sync_file

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyiceberg.io import OutputStream

NAME: Final = f"{__name__}.DurableFileIO"
"""The value of the property `py-io-impl` of a catalog."""


class DurableFileIO(PyArrowFileIO):
    """Reads and writes local files. See `pyiceberg.io.FileIO`."""

    def new_output(self, location: str) -> PyArrowFile:
        """Returns a file that is durable once it is closed."""
        _, _, path = self.parse_location(location, self.properties)
        return _DurableFile(location, path, self.fs_by_scheme("file", ""))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _DurableStream(super().create(overwrite), path)


class _DurableStream:
    """A stream of `pyarrow` that syncs the file and its directory when it is closed."""

    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream = stream
        self._path = path

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)  # type: ignore[attr-defined]  # of pyarrow's streams

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            sync_file(self._path)
            sync_file(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
