"""The file to which `load --on-error skip` writes the rows that it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_STANDARD_INPUT = "-"


class RejectedRows:
    """A file of rows as they were in the file that was loaded, so that they can be corrected and loaded again.

    Used in `with`. The file is made for the first row; an earlier file of the same name is replaced.

    Attributes:
        path: The file.
        count: How many rows were written.
    """

    def __init__(self, source: str, path: Path | None) -> None:
        """Decides the name of the file.

        Args:
            source: What is loaded, as given on the command line.
            path: The file. None: it has the name of the source with `.rejected`, and is in the current directory.

        Raises:
            UsageError: The file is the one that is loaded.
        """
        name = "stdin" if source == _STANDARD_INPUT else Path(source).name
        self.path: Path = path or Path(f"{name}.rejected")
        if self.path.exists() and source != _STANDARD_INPUT and self.path.samefile(source):
            raise UsageError(f"--rejected must not be the file that is loaded, {source}: name another file")
        self.count: int = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, header: bytes, line: bytes) -> None:
        """Writes a row, after the header if it is the first row.

        Raises:
            UsageError: The file cannot be written.
        """
        try:
            if self._file is None:
                self._file = self.path.open("wb")
                self._file.write(header + b"\n" if header else b"")
            self._file.write(line.rstrip(b"\r\n") + b"\n")
        except OSError as error:
            raise UsageError(
                f"the rejected rows cannot be written to {self.path}: {error.strerror}; name another file with "
                "--rejected"
            ) from error
        self.count += 1
