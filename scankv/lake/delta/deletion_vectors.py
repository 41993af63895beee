"""Deletion vectors: which rows of a data file do not belong to a Delta table any more.

A vector is a roaring bitmap of positions. Short ones are in the log itself, longer ones of one commit together in a
file. The format: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Deletion Vectors".
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import LakeDamaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyroaring import BitMap

    from scankv.lake.location import LakeLocation

_MAGIC: Final = 1681511377
# The magic number, the number of bitmaps, and of the only one its key: the upper half of all of its positions.
_HEADER: Final = struct.Struct("<IQI")
_FILE_VERSION: Final = b"\x01"
_LENGTH: Final = struct.Struct(">I")
_LONGEST_INLINE: Final = 512
DIRECTORY: Final = "scankv"
"""Where the files of deletion vectors are: other programs write theirs elsewhere."""

_PYTHON_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_PYTHON_DIGITS, _Z85_DIGITS)
_OF_Z85: Final = bytes.maketrans(_Z85_DIGITS, _PYTHON_DIGITS)

Descriptor = dict[str, Any]


def to_bytes(positions: BitMap) -> bytes:
    """Encodes a deletion vector."""
    compact = positions.copy()
    compact.run_optimize()
    return _HEADER.pack(_MAGIC, 1, 0) + bytes(compact.serialize())


def from_bytes(data: bytes) -> BitMap:
    """Decodes a deletion vector. Raises ValueError if it is damaged, or has positions beyond four billions."""
    from pyroaring import BitMap

    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != (_MAGIC, 1, 0):
        raise ValueError("it is not one bitmap of positions")
    return BitMap.deserialize(data[_HEADER.size :])


def write_vectors(location: LakeLocation, vectors: Sequence[BitMap]) -> list[Descriptor]:
    """Stores the deletion vectors of a commit durably.

    Returns:
        For each vector what the log says about it.

    Raises:
        LakeUnavailable: The location cannot be written.
    """
    encoded = [to_bytes(positions) for positions in vectors]
    id_ = uuid.uuid4()
    content = bytearray(_FILE_VERSION)
    descriptors = []
    for data, positions in zip(encoded, vectors, strict=True):
        descriptor: Descriptor = {"sizeInBytes": len(data), "cardinality": len(positions)}
        if len(data) <= _LONGEST_INLINE:
            descriptor |= {"storageType": "i", "pathOrInlineDv": encode_z85(data)}
        else:
            place = {"storageType": "u", "pathOrInlineDv": DIRECTORY + encode_z85(id_.bytes), "offset": len(content)}
            descriptor |= place
            content += _LENGTH.pack(len(data)) + data + _LENGTH.pack(zlib.crc32(data))
        descriptors.append(descriptor)
    if len(content) > 1:
        with location.create(_path(id_)) as stream:
            stream.write(bytes(content))
    return descriptors


def vector_path(descriptor: Descriptor) -> str | None:
    """Returns the file of a deletion vector. None: it is in the log itself, or another program has written it."""
    text = descriptor["pathOrInlineDv"]
    if descriptor["storageType"] != "u" or text[:-20] != DIRECTORY:
        return None
    return _path(uuid.UUID(bytes=decode_z85(text[-20:])))


def read_vector(location: LakeLocation, descriptor: Descriptor) -> BitMap:
    """Reads a deletion vector.

    Raises:
        LakeDamaged: It is missing or damaged, or another program has written it in a file.
        LakeUnavailable: The location does not answer.
    """
    try:
        return from_bytes(_read(location, descriptor))
    except (ValueError, KeyError, struct.error) as error:
        raise LakeDamaged(
            f"a deletion vector of the Delta table in {location} cannot be read ({error}): publish with --full"
        ) from error


def _read(location: LakeLocation, descriptor: Descriptor) -> bytes:
    size = descriptor["sizeInBytes"]
    if descriptor["storageType"] == "i":
        return decode_z85(descriptor["pathOrInlineDv"])[:size]
    path = vector_path(descriptor)
    content = None if path is None else location.read(path)
    if content is None:
        raise ValueError("its file is missing")
    start = descriptor["offset"]
    data = content[start + 4 : start + 4 + size]
    (length,) = _LENGTH.unpack_from(content, start)
    (checksum,) = _LENGTH.unpack_from(content, start + 4 + size)
    if length != size or checksum != zlib.crc32(data):
        raise ValueError("its checksum is wrong")
    return data


def encode_z85(data: bytes) -> str:
    """Encodes bytes as text, after zeros at the end up to a multiple of four bytes."""
    padded = data + b"\0" * (-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode()


def decode_z85(text: str) -> bytes:
    """Decodes text of `encode_z85`, with the zeros. Raises ValueError if it is other text."""
    return base64.b85decode(text.encode().translate(_OF_Z85))


def _path(id_: uuid.UUID) -> str:
    return f"{DIRECTORY}/deletion_vector_{id_}.bin"
