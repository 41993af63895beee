"""An Iceberg table with damaged manifests is reported as damaged, whatever pyiceberg and its readers raise."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import clear_manifest_cache

from aio_client import LakeDamaged, LakeError
from scankv.lake.sources.sources import open_source
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES = st.floats(0, 1, exclude_max=True)
_FILES = st.integers(0, 2)
ROWS = 100


@dataclass(frozen=True)
class IcebergFiles:
    """A table: its metadata file, and the contents of its two manifests and of their list."""

    metadata: str
    manifests: dict[Path, bytes] = field(repr=False)

    def read_with(self, number: int, content: bytes) -> None:
        """Reads all rows while one of the manifests has another content."""
        file, good = list(self.manifests.items())[number]
        file.write_bytes(content)
        clear_manifest_cache()
        try:
            assert open_source(self.metadata, "iceberg").reader.read_all().num_rows == ROWS
        finally:
            file.write_bytes(good)

    def content(self, number: int) -> bytes:
        return list(self.manifests.values())[number]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergFiles]:
    path = tmp_path_factory.mktemp("iceberg")
    with closing(SqlCatalog("other", uri=f"sqlite:///{path}/other.db", warehouse=str(path))) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("text", pa.string())]))
        for first in (0, ROWS // 2):
            numbers = range(first, first + ROWS // 2)
            table.append(pa.table({"id": [*numbers], "text": [f"text {number}" for number in numbers]}))
        metadata = _path(table.metadata_location)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = [_path(each.manifest_path) for each in snapshot.manifests(table.io)]
        manifests.append(_path(snapshot.manifest_list))
    with pytest.MonkeyPatch.context() as patched:
        # The compiled decoder reads past the end of damaged files, which can end the process.
        patched.setattr(avro_file, "new_decoder", StreamingBinaryDecoder)
        yield IcebergFiles(str(metadata), {file: file.read_bytes() for file in manifests})


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


@examples(10)
@given(_FILES, _PLACES)
def test_a_cut_manifest_is_damage(files: IcebergFiles, number: int, place: float) -> None:
    content = files.content(number)
    # The first half of such a file is a part of its header.
    with pytest.raises(LakeDamaged, match=r"cannot be read \(EOFError.*restore its files"):
        files.read_with(number, content[: int(place * len(content) / 2)])


@examples(50)
@given(_FILES, _PLACES)
def test_no_row_is_missing_after_any_cut(files: IcebergFiles, number: int, place: float) -> None:
    content = files.content(number)
    with suppress(LakeError):
        files.read_with(number, content[: int(place * len(content))])


@pytest.mark.breadth
@examples(50)
@given(_FILES, _PLACES, st.integers(1, 255))
def test_a_changed_byte_in_a_manifest_raises_no_other_error_than_ours(
    files: IcebergFiles, number: int, place: float, change: int
) -> None:
    content = bytearray(files.content(number))
    content[int(place * len(content))] ^= change
    # What is changed may be a text that does not matter.
    with suppress(LakeError):
        files.read_with(number, bytes(content))
