"""Where a published table is: a local directory, or an object store that `pyarrow.fs` knows."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from pyarrow import fs

from scankv.model.errors import LakeConflict, LakeUnavailable, UsageError
from scankv.model.installing import command_to_install
from scankv.model.shown_uris import has_user, show_location, show_reason, show_uri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

_TEMPORARY: Final = ".scankv-"


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a location.

    Attributes:
        path: Relative to the location.
        size_bytes: Its size.
        changed_at: When it was written, by the clock of the location. None: not known.
    """

    path: str
    size_bytes: int
    changed_at: datetime | None


class LakeLocation:
    """The files below a location. Its methods block, and threads may call them concurrently.

    Args:
        uri: A directory, or a URI such as `s3://bucket/tables/scores`. Credentials come from the environment, as the
            documentation of `pyarrow.fs` says.

    Raises:
        UsageError: The location cannot be used: it has another form, or contains credentials.
    """

    def __init__(self, uri: str) -> None:
        self.uri: Final = uri
        try:
            self._files, self._root = _open(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            # Without its cause, which may have the complete URI.
            raise UsageError(
                f'"{show_location(uri)}" is no location for a table ({show_reason(error, uri)}): give a directory, '
                "or a URI such as s3://bucket/table"
            ) from None
        self.local: Final = Path(self._root) if isinstance(self._files, fs.LocalFileSystem) else None

    def __str__(self) -> str:
        return self.uri.partition("?")[0]

    @property
    def files(self) -> fs.FileSystem:
        """The file system of the location."""
        return self._files

    @property
    def root(self) -> str:
        """The path of the location in its file system."""
        return self._root

    def kind(self, path: str = "") -> fs.FileType:
        """Returns whether a path is a file, a directory or nothing."""
        with self.translate_errors("read"):
            return self._files.get_file_info(self._full(path)).type

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file. None: it does not exist."""
        with self.translate_errors("read"):
            try:
                with self._files.open_input_stream(self._full(path), compression=None) as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def open_input(self, path: str) -> pa.NativeFile:
        """Opens a file for random access. Raises LakeUnavailable, or FileNotFoundError if the file does not exist."""
        with self.translate_errors("read"):
            return self._files.open_input_file(self._full(path))

    @contextmanager
    def create(self, path: str) -> Iterator[pa.NativeFile]:
        """Writes a file that no other program writes. At the end of the block, it is durable."""
        with self.translate_errors("written"):
            if self.local is not None:
                (self.local / path).parent.mkdir(parents=True, exist_ok=True)
            with self._files.open_output_stream(self._full(path)) as stream:
                yield stream
            if self.local is not None:
                sync_file(self.local / path)
                sync_file((self.local / path).parent)

    def create_if_absent(self, path: str, content: bytes) -> None:
        """Creates a file durably and completely, unless one with this name exists. One of several calls succeeds.

        Raises:
            LakeConflict: The file exists, with another content.
            LakeUnavailable: The location does not answer. Whether the file was created may be unknown.
        """
        with self.translate_errors("written"):
            try:
                if self.local is not None:
                    self._link(self.local / path, content)
                else:
                    self._put(path, content)
            except FileExistsError:
                is_new = False
            else:
                is_new = True
        # A request that was repeated on the way can find its own file.
        if not is_new and self.read(path) != content:
            raise LakeConflict(
                f"another program has committed {path} in {self} since the last version was read: nothing was "
                "committed; let one program publish each table"
            )

    def list(self, directory: str = "", *, recursive: bool = False) -> list[LakeFile]:
        """Returns the files of a directory, in no particular order. Empty if it does not exist."""
        selector = fs.FileSelector(self._full(directory), allow_not_found=True, recursive=recursive)
        with self.translate_errors("read"):
            found = self._files.get_file_info(selector)
        root = f"{self._root}/"
        return [
            LakeFile(info.path.removeprefix(root), info.size, info.mtime)
            for info in found
            if info.type == fs.FileType.File
        ]

    def delete(self, path: str) -> None:
        """Deletes a file. Does nothing if it does not exist."""
        with self.translate_errors("written"):
            try:
                self._files.delete_file(self._full(path))
            except FileNotFoundError:
                pass

    @property
    def root_uri(self) -> str:
        """The location without options, as other libraries take it."""
        return str(self.local or self)

    def object_store_options(self, prefix: str = "") -> dict[str, str]:
        """Returns the options of the URI for libraries that are built on the Rust crate `object_store`."""
        options = {name: values[-1] for name, values in parse_qs(urlsplit(self.uri).query).items()}
        found = {}
        if "endpoint_override" in options:
            found["endpoint"] = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
        if "region" in options:
            found["region"] = options["region"]
        found = {prefix + name: value for name, value in found.items()}
        return found | {"allow_http": "true"} if options.get("scheme") == "http" else found

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @staticmethod
    def _link(path: Path, content: bytes) -> None:
        """Creates a local file at once: it never has its name without its content. Raises FileExistsError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
        try:
            with part.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.link(part, path)
            sync_file(path.parent)
        finally:
            part.unlink(missing_ok=True)

    def _put(self, path: str, content: bytes) -> None:
        """Creates an object with a conditional request, which `pyarrow.fs` does not have.

        Raises:
            FileExistsError: The object exists.
            OSError: The store does not answer, or refuses.
            UsageError: obstore is not installed.
        """
        require_package("obstore")
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
        from obstore.store import from_url

        parts = urlsplit(self.uri)
        options: dict[str, Any] = self.object_store_options()
        # What the URI does not say comes from the environment, such as AWS_ENDPOINT_URL and AWS_ALLOW_HTTP.
        if options.pop("allow_http", None):
            options["client_options"] = {"allow_http": True}
        try:
            store = from_url(f"{parts.scheme}://{parts.netloc}", **options)
            obstore.put(store, f"{parts.path.strip('/')}/{path}", content, mode="create")
        except AlreadyExistsError as error:
            raise FileExistsError(path) from error
        except BaseError as error:
            raise OSError(str(error)) from error

    @contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Raises LakeUnavailable for whatever the location raises, except if a file to be "read" does not exist."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if what == "read" and isinstance(error, FileNotFoundError):
                raise
            reason = getattr(error, "strerror", None) or str(error)
            raise LakeUnavailable(
                f"{self} cannot be {what} ({reason}): see to its space, its permissions and whether it can be reached, "
                "then repeat the command"
            ) from error


def is_temporary(name: str) -> bool:
    """Returns whether a file is a leftover of `create_if_absent`."""
    return name.rpartition("/")[2].startswith(_TEMPORARY)


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    if has_user(uri):
        # It would appear in logs and in the list of processes.
        raise UsageError(
            f"the location {show_uri(uri)} contains credentials: leave them out, "
            "and set them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    files, root = fs.FileSystem.from_uri(uri)
    return files, str(root).rstrip("/")


def sync_file(path: Path) -> None:
    """Makes a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_package(name: str) -> None:
    """Raises UsageError, with the command that installs it, if a package of the extra `lake` is not installed."""
    if find_spec(name) is None:
        raise UsageError(f"{name} is not installed; {command_to_install('lake')}")
