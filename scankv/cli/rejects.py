"""The file to which `load --on-error skip` writes the rows that it leaves out."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_STANDARD_INPUT = "-"


class RejectedRows:
    """A file of rows as they were in the file that was loaded, so that they can be corrected and loaded again.

    Used in `with`. The file is made for the first row.

    Attributes:
        path: The file.
        count: How many rows were written.
        is_usable: Whether every write has succeeded.
    """

    def __init__(self, source: str, path: Path | None) -> None:
        """Decides the name of the file.

        Args:
            source: What is loaded, as given on the command line.
            path: The file, which replaces an earlier one. None: it has the name of the source with `.rejected`, is in
                the current directory, and replaces no file.

        Raises:
            UsageError: The file is the one that is loaded; or it has no name, or exists, and `path` does not name it.
        """
        if path is None and source == _STANDARD_INPUT:
            raise UsageError("--on-error skip with standard input needs --rejected PATH: name a file for rejected rows")
        self.path: Path = path or Path(f"{_name_of(source)}.rejected")
        if _is_same_file(self.path, 0 if source == _STANDARD_INPUT else source):
            shown = "standard input" if source == _STANDARD_INPUT else source
            raise UsageError(f"--rejected must not be the file that is loaded, {shown}: name another file")
        if path is None and os.path.lexists(self.path):
            raise UsageError(f"{self.path} exists: remove it, or replace it with --rejected {self.path}")
        self.count: int = 0
        self.is_usable: bool = True
        self._mode: Literal["wb", "xb"] = "xb" if path is None else "wb"
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        try:
            # Writes the rows that are still in memory.
            self._file.close()
        except OSError as failure:
            lost = self._lost(failure)
            if error is None:
                raise lost from failure

    def write(self, header: bytes, line: bytes) -> None:
        """Writes a row, after the header if it is the first row. Leaving `with` writes the last rows.

        Raises:
            UsageError: The file cannot be written.
        """
        try:
            if self._file is None:
                self._file = self.path.open(self._mode)
                self._file.write(header + b"\n" if header else b"")
            self._file.write(line.rstrip(b"\r\n") + b"\n")
        except OSError as error:
            raise self._lost(error) from error
        self.count += 1

    def _lost(self, error: OSError) -> UsageError:
        """Records that rows are lost, and returns the error that says so."""
        self.is_usable = False
        return UsageError(
            f"the rejected rows cannot be written to {self.path}: {error.strerror}; name another file with --rejected"
        )


def _name_of(source: str) -> str:
    """Returns the name of a file or directory. `.` and `..` have the names of these directories."""
    path = Path(source)
    return path.resolve().name if path.name in ("", "..") else path.name


def _is_same_file(path: Path, source: str | int) -> bool:
    """Returns whether a path is the regular file that is loaded. False if this is unknown: using the file will fail."""
    try:
        found, loaded = path.stat(), os.stat(source)
    except OSError:
        return False
    # A terminal may be read and written.
    return stat.S_ISREG(found.st_mode) and os.path.samestat(found, loaded)
