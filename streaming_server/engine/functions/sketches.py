"""Roaring bitmaps and the sketches of Apache DataSketches: unions of what they have serialised, key by key.

Both libraries come with the extra `sketches`, and are imported on use. They read bytes that a client sent, so each is
read by their checked functions, and what they refuse is refused.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from scankv.model.errors import InvalidRequest
from streaming_server.engine.functions.function import Inputs, RefusedValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TOP_K_LOG2_SIZE: Final = 10


class Union(Protocol):
    """A union that is being made."""

    def add(self, data: bytes) -> None:
        """Adds what was serialised. Raises any error for what was not."""

    def serialised(self) -> bytes:
        """The union so far."""


class SerialisedUnion:
    """The union of binaries that one library reads.

    Args:
        what: What they are, for errors.
        begin: Begins a union.
    """

    def __init__(self, what: str, begin: Callable[[], Union]) -> None:
        self._what = what
        self._begin = begin

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """As `MergeFunction.merge`; refuses what is ill-formed. What is taken back has been refused before."""
        results: list[bytes | None] = old[0].to_pylist()
        unions: dict[int, Union] = {}
        inputs = inputs.added().not_null()
        for key, data in zip(inputs.keys.tolist(), inputs.values.to_pylist(), strict=True):
            if key not in unions:
                unions[key] = self._begin()
                before = results[key]
                if before is not None:
                    self._add(unions[key], before, key, "what is stored")
            self._add(unions[key], data, key, "the value")
        for key, union in unions.items():
            results[key] = union.serialised()
        return [pa.array(results, pa.binary())]

    def _add(self, union: Union, data: bytes, key: int, which: str) -> None:
        try:
            union.add(data)
        except Exception as error:  # the libraries have no common one
            raise RefusedValueError(key, f"{which} is no {self._what}") from error


class _Bitmap:
    def __init__(self, library: Any, name: str) -> None:  # noqa: ANN401  # ships no types
        self._kind = getattr(library, name)
        self._union = self._kind()

    def add(self, data: bytes) -> None:
        bitmap = self._kind.deserialize(data)
        # What is behind the bitmap would be lost in silence.
        if len(bitmap.serialize()) != len(data):
            raise ValueError("there is more than a bitmap")
        self._union |= bitmap

    def serialised(self) -> bytes:
        # In one form, however it came about.
        self._union.run_optimize()
        return bytes(self._union.serialize())


class _Hll:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._library = library
        self._union = library.hll_union(21)

    def add(self, data: bytes) -> None:
        self._union.update(self._library.hll_sketch.deserialize(data))

    def serialised(self) -> bytes:
        return bytes(self._union.get_result(self._library.tgt_hll_type.HLL_8).serialize_compact())


class _Theta:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._library = library
        self._union = library.theta_union()

    def add(self, data: bytes) -> None:
        self._union.update(self._library.compact_theta_sketch.deserialize(data))

    def serialised(self) -> bytes:
        return bytes(self._union.get_result().serialize())


class _TopK:
    def __init__(self, library: Any) -> None:  # noqa: ANN401
        self._kind = library.frequent_strings_sketch
        self._union = self._kind(_TOP_K_LOG2_SIZE)

    def add(self, data: bytes) -> None:
        self._union.merge(self._kind.deserialize(data))

    def serialised(self) -> bytes:
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
    """One of them. Raises InvalidRequest, naming the column, where its library is not installed."""
    library, what, begin = _BEGIN[name]
    try:
        module = import_module(library)
    except ImportError as error:
        raise InvalidRequest(
            f'column "{column}": {name} needs the package {library} at the server, which is not installed there: '
            'pip install "scankv[sketches]"',
            column=column,
        ) from error
    return SerialisedUnion(what, lambda: begin(module))
