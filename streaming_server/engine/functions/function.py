"""The interface of aggregators. They are pure, and merge all keys of a step together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    Places: TypeAlias = npt.NDArray[np.int64]
    Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Values for one column of several keys. Immutable.

    Attributes:
        values: The values, grouped by key, and in the order of arrival within a key.
        keys: The number of the key of each value; ascending. A key may have no value.
        count: The number of keys.
        retracted: Which of the values are retracted. None: no value is.
    """

    values: pa.Array
    keys: Places
    count: int
    retracted: Mask | None = None

    def where(self, mask: Mask) -> Inputs:
        """Returns some of the values."""
        retracted = None if self.retracted is None else self.retracted[mask]
        return Inputs(self.values.filter(pa.array(mask)), self.keys[mask], self.count, retracted)

    def not_null(self) -> Inputs:
        """Returns the values that are not null."""
        if not self.values.null_count:
            return self
        return self.where(self.values.is_valid().to_numpy(zero_copy_only=False))

    def additions(self) -> Inputs:
        """Returns the values that are not retracted."""
        return self if self.retracted is None else self.where(~self.retracted)

    @property
    def signs(self) -> npt.NDArray[np.int64] | None:
        """1 for each added value, -1 for each retracted one. None: all are added."""
        return None if self.retracted is None else np.where(self.retracted, -1, 1)

    @property
    def has_any(self) -> Mask:
        """Which keys have a value."""
        found = np.zeros(self.count, np.bool_)
        found[self.keys] = True
        return found

    def first(self) -> Places:
        """Returns the position of the first value of each key that has one, ascending."""
        return first_places(self.keys)

    def last(self) -> Places:
        """Returns the position of the last value of each key that has one, ascending."""
        return last_places(self.keys)


class MergeFunction(Protocol):
    """Merges values into a column of many keys. Has no state besides its parameters.

    The result does not depend on how the inputs are split into calls, with one exception: an integer sum that is out of
    range at the end of a call is refused, even if later inputs would bring it back into range.
    """

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """Returns the new column, one value per key, and then its hidden columns.

        Args:
            old: The old column and hidden columns, null where a key has no value; `inputs.count` values each.
            inputs: The values.

        Raises:
            RefusedValueError: A key's values have no result.
        """


class RefusedValueError(Exception):
    """The values of one key have no result.

    Attributes:
        place: The number of the key.
        reason: The reason, without a value of the data.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = int(place)
        self.reason = reason


def refuse_where(mask: Mask, reason: str) -> None:
    """Raises RefusedValueError for the first key of a mask."""
    if mask.any():
        raise RefusedValueError(int(np.argmax(mask)), reason)


def first_places(keys: Places) -> Places:
    """Returns the positions at which runs of equal numbers begin."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def last_places(keys: Places) -> Places:
    """Returns the positions at which runs of equal numbers end."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate((keys[1:] != keys[:-1], [True])))


def not_null_mask(array: pa.Array) -> Mask:
    """Returns the mask of values that are not null."""
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def replace_where(mask: Mask, new: pa.Array, old: pa.Array) -> pa.Array:
    """Returns the new values where the mask is true, else the old ones, in their type.

    Arrow's `if_else` changes the type of decimals with a negative scale.
    """
    places = np.arange(len(old))
    return pa.concat_arrays([new, old]).take(pa.array(np.where(mask, places, places + len(old))))


def prepend_old(old: pa.Array, inputs: Inputs) -> Inputs:
    """Returns the values of each key with its old value, even null, in front of them."""
    keys = np.concatenate((np.arange(inputs.count), inputs.keys))
    order = np.argsort(keys, kind="stable")
    retracted = None
    if inputs.retracted is not None:
        retracted = np.concatenate((np.zeros(inputs.count, np.bool_), inputs.retracted))[order]
    values = pa.concat_arrays([old, inputs.values]).take(pa.array(order))
    return Inputs(values, keys[order], inputs.count, retracted)


def append_old_reversed(old: pa.Array, inputs: Inputs) -> Inputs:
    """Returns the values of each key in reverse order, and its old value after them. No value may be retracted."""
    keys = np.concatenate((inputs.keys[::-1], np.arange(inputs.count)))
    order = np.argsort(keys, kind="stable")
    backwards = np.arange(len(inputs.keys))[::-1]
    values = pa.concat_arrays([inputs.values.take(pa.array(backwards)), old]).take(pa.array(order))
    return Inputs(values, keys[order], inputs.count)
