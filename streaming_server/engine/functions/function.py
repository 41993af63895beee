"""What an aggregate function is: pure, and over all keys of a step at once."""

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
        values: The values, key by key, and those of one key in the order in which they came.
        keys: For each value the number of its key; ascending. A key may have none.
        count: How many keys there are.
        retracted: Which of the values are taken back. None: none.
    """

    values: pa.Array
    keys: Places
    count: int
    retracted: Mask | None = None

    def where(self, mask: Mask) -> Inputs:
        """Some of them."""
        retracted = None if self.retracted is None else self.retracted[mask]
        return Inputs(self.values.filter(pa.array(mask)), self.keys[mask], self.count, retracted)

    def not_null(self) -> Inputs:
        """Those that are not null."""
        if not self.values.null_count:
            return self
        return self.where(self.values.is_valid().to_numpy(zero_copy_only=False))

    def added(self) -> Inputs:
        """Those that are not taken back."""
        return self if self.retracted is None else self.where(~self.retracted)

    @property
    def signs(self) -> npt.NDArray[np.int64] | None:
        """1 for a value that is added, -1 for one that is taken back; None: all are added."""
        return None if self.retracted is None else np.where(self.retracted, -1, 1)

    @property
    def has_any(self) -> Mask:
        """Which keys have a value here."""
        found = np.zeros(self.count, np.bool_)
        found[self.keys] = True
        return found

    def first(self) -> Places:
        """The places of the first value of each key that has one, ascending."""
        return first_places(self.keys)

    def last(self) -> Places:
        """The places of the last value of each key that has one, ascending."""
        return last_places(self.keys)


class MergeFunction(Protocol):
    """Merges values into a column of many keys. Stateless but for its parameters.

    The result is the same however the inputs are cut into calls; but that an integer sum may be refused for what is
    within its range again at the end of a larger call.
    """

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """What the column is for each key, and behind it what is hidden beside the column.

        Args:
            old: The same as of before, null where there was nothing: arrays of `inputs.count` values.
            inputs: The values.

        Raises:
            RefusedValueError: A key's values have no result.
        """


class RefusedValueError(Exception):
    """The values of one key have no result.

    Attributes:
        place: The number of the key.
        reason: Why, without a value.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = int(place)
        self.reason = reason


def refuse_where(mask: Mask, reason: str) -> None:
    """Raises RefusedValueError for the first key of which something is true."""
    if mask.any():
        raise RefusedValueError(int(np.argmax(mask)), reason)


def first_places(keys: Places) -> Places:
    """Where runs of equal numbers begin."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def last_places(keys: Places) -> Places:
    """Where runs of equal numbers end."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate((keys[1:] != keys[:-1], [True])))


def valid(array: pa.Array) -> Mask:
    """True where a value is not null."""
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def chosen(mask: Mask, new: pa.Array, old: pa.Array) -> pa.Array:
    """The new value where something is true, else the old one; of their type.

    Arrow's `if_else` makes another one of decimals with a negative scale.
    """
    places = np.arange(len(old))
    return pa.concat_arrays([new, old]).take(pa.array(np.where(mask, places, places + len(old))))


def behind_old(old: pa.Array, inputs: Inputs) -> Inputs:
    """The values with the old one of each key in front of them, also where that is null."""
    keys = np.concatenate((np.arange(inputs.count), inputs.keys))
    order = np.argsort(keys, kind="stable")
    retracted = None
    if inputs.retracted is not None:
        retracted = np.concatenate((np.zeros(inputs.count, np.bool_), inputs.retracted))[order]
    values = pa.concat_arrays([old, inputs.values]).take(pa.array(order))
    return Inputs(values, keys[order], inputs.count, retracted)


def before_old(old: pa.Array, inputs: Inputs) -> Inputs:
    """The values from the last one to the first one, and the old one of each key behind them; none is taken back."""
    keys = np.concatenate((inputs.keys[::-1], np.arange(inputs.count)))
    order = np.argsort(keys, kind="stable")
    backwards = np.arange(len(inputs.keys))[::-1]
    values = pa.concat_arrays([inputs.values.take(pa.array(backwards)), old]).take(pa.array(order))
    return Inputs(values, keys[order], inputs.count)
