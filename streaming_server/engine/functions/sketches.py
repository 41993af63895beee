"""Unions of serialized roaring bitmaps and of serialized sketches of Apache DataSketches, one for each key.

Both libraries come with the extra `sketches` and are imported on first use. The bytes come from clients, so only the
libraries' checked functions read them, and bytes that these functions reject are refused.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from scankv.model.errors import InvalidRequest
from scankv.model.installing import command_to_install
from streaming_server.engine.functions.function import Inputs, RefusedValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TOP_K_LOG2_SIZE: Final = 10


class Union(Protocol):
    """An unfinished union."""

    def add(self, data: bytes) -> None:
        """Adds a serialized value. May raise any exception for bytes that are not a serialized value."""

    def serialise(self) -> bytes:
        """Returns the union of all values added so far."""


class SerialisedUnion:
    """An aggregator whose inputs and result are serialized values of one library.

    Args:
        what: What the values are, for errors.
        begin: Creates an empty union.
    """

    def __init__(self, what: str, begin: Callable[[], Union]) -> None:
        self._what = what
        self._begin = begin

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses malformed bytes. Retractions were refused before, or are ignored."""
        results: list[bytes | None] = old[0].to_pylist()
        unions: dict[int, Union] = {}
        inputs = inputs.additions().not_null()
        for key, data in zip(inputs.keys.tolist(), inputs.values.to_pylist(), strict=True):
            if key not in unions:
                unions[key] = self._begin()
                before = results[key]
                if before is not None:
                    self._add(unions[key], before, key, "the stored value")
            self._add(unions[key], data, key, "the value")
        for key, union in unions.items():
            results[key] = union.serialise()
        return [pa.array(results, pa.binary())]

    def _add(self, union: Union, data: bytes, key: int, which: str) -> None:
        try:
            union.add(data)
        except Exception as error:  # the libraries' exceptions have no common class
            raise RefusedValueError(key, f"{which} is not a {self._what}") from error


class _Bitmap:
    def __init__(self, library: Any, name: str) -> None:  # noqa: ANN401  # ships no types
        self._kind = getattr(library, name)
        self._union = self._kind()

    def add(self, data: bytes) -> None:
        bitmap = self._kind.deserialize(data)
        # The library ignores bytes after the bitmap, so they would be lost silently.
        if len(bitmap.serialize()) != len(data):
            raise ValueError("bytes follow the bitmap")
        self._union |= bitmap

    def serialise(self) -> bytes:
        # Equal bitmaps get equal bytes, whatever the order in which they were built.
        self._union.run_optimize()
        return bytes(self._union.serialize())


class _Hll:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._library = library
        self._union = library.hll_union(21)

    def add(self, data: bytes) -> None:
        self._union.update(self._library.hll_sketch.deserialize(data))

    def serialise(self) -> bytes:
        return bytes(self._union.get_result(self._library.tgt_hll_type.HLL_8).serialize_compact())


class _Theta:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._library = library
        self._union = library.theta_union()

    def add(self, data: bytes) -> None:
        self._union.update(self._library.compact_theta_sketch.deserialize(data))

    def serialise(self) -> bytes:
        return bytes(self._union.get_result().serialize())


class _TopK:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._kind = library.frequent_strings_sketch
        self._union = self._kind(_TOP_K_LOG2_SIZE)

    def add(self, data: bytes) -> None:
        self._union.merge(self._kind.deserialize(data))

    def serialise(self) -> bytes:
        return bytes(self._union.serialize())


_BEGIN: Final[Mapping[str, tuple[str, str, Callable[[Any], Union]]]] = {
    "rbm32": ("pyroaring", "roaring bitmap of 32-bit numbers", lambda library: _Bitmap(library, "BitMap")),
    "rbm64": ("pyroaring", "roaring bitmap of 64-bit numbers", lambda library: _Bitmap(library, "BitMap64")),
    "hll_sketch": ("datasketches", "serialised HLL sketch", _Hll),
    "theta_sketch": ("datasketches", "serialised theta sketch", _Theta),
    "top_k": ("datasketches", "serialised frequent-strings sketch", _TopK),
}

SKETCHES: Final = frozenset(_BEGIN)
"""The functions of this module."""


def sketch_function(name: str, column: str) -> SerialisedUnion:
    """Returns a function of `SKETCHES`. Raises InvalidRequest, naming the column, if its library is not installed."""
    library, what, begin = _BEGIN[name]
    try:
        module = import_module(library)
    except ImportError as error:
        raise InvalidRequest(
            f'column "{column}": {name} needs the package {library}, which is not installed on the server; '
            f"{command_to_install('sketches')}",
            column=column,
        ) from error
    return SerialisedUnion(what, lambda: begin(module))
