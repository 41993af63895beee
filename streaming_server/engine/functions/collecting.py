"""`collect`, `listagg` and `merge_map`: functions that keep all of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from scankv.model.types.nested import map_as_list
from streaming_server.engine.functions.function import Inputs, first_places, last_places, not_null_mask, prepend_old
from streaming_server.storage.rows.shredding import shred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Mask, Places


class Collect:
    """Concatenates the lists that are not null. A retracted list removes the oldest occurrence of each of its elements.

    Args:
        distinct: Whether an element is skipped if the list contains it already.
    """

    def __init__(self, *, distinct: bool) -> None:
        self._distinct = distinct

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`."""
        return [self.concatenate(prepend_old(old[0], inputs), old[0].type)]

    def concatenate(self, every: Inputs, type_: pa.DataType) -> pa.Array:
        """Concatenates the values of each key in their order. Returns an array of `type_`, one value per key."""
        events = _Events.of(every)
        if self._distinct:
            kept = events.runs_of(events.elements).since_last_removal()[0]
        elif events.gone is not None:
            kept = events.runs_of(events.elements).remaining_additions()
        else:
            return events.lists(type_, events.elements, events.keys)
        kept = np.sort(kept)
        return events.lists(type_, events.elements.take(pa.array(kept)), events.keys[kept])


class ListAgg:
    """Concatenates the texts that are not null, with a delimiter between them.

    Args:
        delimiter: The delimiter.
        distinct: Whether a part between two delimiters is skipped if the text contains it already.
    """

    def __init__(self, delimiter: str, *, distinct: bool) -> None:
        self._delimiter = delimiter
        self._distinct = distinct

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Retractions were refused before, or are ignored."""
        return [self.concatenate(prepend_old(old[0], inputs.additions()), old[0].type)]

    def concatenate(self, every: Inputs, type_: pa.DataType) -> pa.Array:
        """Concatenates the texts of each key in their order. Returns an array of strings, one per key."""
        if self._distinct:
            parts = pc.split_pattern(every.values, self._delimiter)
            events = _Events.of(Inputs(parts, every.keys, every.count))
            kept = np.sort(events.runs_of(events.elements).since_last_removal()[0])
            lists = events.lists(pa.list_(type_), events.elements.take(pa.array(kept)), events.keys[kept])
        else:
            texts = every.not_null()
            lists = _lists(pa.list_(type_), texts.values, texts.keys, texts.has_any)
        return pc.binary_join(lists, self._delimiter)


class MergeMap:
    """Combines the maps that are not null; the last value of a map key wins. A retracted map removes its keys."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`."""
        return [self.concatenate(prepend_old(old[0], inputs), old[0].type)]

    def concatenate(self, every: Inputs, type_: pa.DataType) -> pa.Array:
        """Concatenates the values of each key in their order. Returns an array of `type_`, one value per key."""
        events = _Events.of(Inputs(map_as_list(every.values), every.keys, every.count, every.retracted))
        names, values = events.elements.flatten()
        first, last = events.runs_of(names).since_last_removal()
        order = np.argsort(first)
        first, last = first[order], last[order]
        offsets = _offsets(events.keys[first], events.count)
        keys, items = names.take(pa.array(first)), values.take(pa.array(last))
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=pa.array(~events.has_any))


class _Events:
    """The elements that inputs add to or remove from the lists of several keys, in the order of arrival.

    Attributes:
        elements: The element of each event.
        keys: The number of the key of each event, ascending.
        count: The number of keys.
        gone: Which events remove their element. None: no event does.
        has_any: Which keys have an added list, even an empty one.
    """

    def __init__(self, elements: pa.Array, keys: Places, count: int, gone: Mask | None, has_any: Mask) -> None:
        self.elements = elements
        self.keys = keys
        self.count = count
        self.gone = gone
        self.has_any = has_any

    @classmethod
    def of(cls, lists: Inputs) -> _Events:
        lengths = pc.list_value_length(lists.values).fill_null(0).to_numpy()
        gone = lists.retracted
        if gone is not None:
            gone = np.repeat(gone, lengths) if gone.any() else None
        has_any = lists.additions().not_null().has_any
        return cls(lists.values.flatten(), np.repeat(lists.keys, lengths), lists.count, gone, has_any)

    def runs_of(self, names: pa.Array) -> _Runs:
        """Groups the events of each key by name. `names` has the name of each event."""
        codes = _codes(names)
        order = np.lexsort((codes, self.keys))
        keys, codes = self.keys[order], codes[order]
        changes = np.zeros(len(order), np.int64)
        changes[1:] = (keys[1:] != keys[:-1]) | (codes[1:] != codes[:-1])
        gone = np.zeros(len(order), np.bool_) if self.gone is None else self.gone[order]
        return _Runs(order, np.cumsum(changes), gone)

    def lists(self, type_: pa.DataType, elements: pa.Array, keys: Places) -> pa.Array:
        """Returns a list for each key, null for a key without one. `keys` has the key number of each element."""
        return _lists(type_, elements, keys, self.has_any)


class _Runs:
    """Events grouped into runs. A run has the events of one name of one key, in the order of arrival.

    Args:
        order: The position of each event among all events.
        runs: The number of each event's run, ascending.
        gone: Which events remove their element.
    """

    def __init__(self, order: Places, runs: Places, gone: Mask) -> None:
        self._order = order
        self._runs = runs
        self._gone = gone

    def since_last_removal(self) -> tuple[Places, Places]:
        """Returns, for each run that has events after its last removal, the positions of the first and last of them."""
        starts = first_places(self._runs)
        if not len(starts):
            return self._order, self._order
        number = np.arange(len(self._runs))
        last_removal = np.maximum.reduceat(np.where(self._gone, number, -1), starts)
        since = np.flatnonzero(number > last_removal[self._runs])
        runs = self._runs[since]
        return self._order[since[first_places(runs)]], self._order[since[last_places(runs)]]

    def remaining_additions(self) -> Places:
        """Returns the positions of the additions that remain when each removal removes the oldest remaining one."""
        starts, ends = first_places(self._runs), last_places(self._runs)
        if not len(starts):
            return self._order
        steps = np.where(self._gone, -1, 1)
        balance = np.cumsum(steps)
        balance -= (balance[starts] - steps[starts])[self._runs]
        # A removal has no effect when no element remains, as if the balance had never been below zero.
        left = balance[ends] - np.minimum(np.minimum.reduceat(balance, starts), 0)
        added = np.cumsum(~self._gone)
        later: Places = added[ends][self._runs] - added
        return self._order[~self._gone & (later < left[self._runs])]


def _lists(type_: pa.DataType, elements: pa.Array, keys: Places, has_any: Mask) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(keys, len(has_any)), elements, type=type_, mask=pa.array(~has_any))


def _offsets(keys: Places, count: int) -> pa.Array:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _codes(values: pa.Array) -> Places:
    """Returns numbers that are equal where values have the same bits. Null is a value."""
    type_ = values.type
    if pat.is_nested(type_):
        head = pa.array(not_null_mask(values).astype(np.uint8)).cast(pa.string()).cast(pa.binary())
        values = pc.binary_join_element_wise(head, *shred(values), b"")
    elif pat.is_floating(type_):
        values = values.view({16: pa.uint16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width])
    codes: Places = values.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
    return codes
