"""Checks what manifests and segments say: any program that may write to the location may have changed them.

Their checksum only shows that a file was not damaged by accident.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from scankv.model.errors import DataLoss, NewerFormat, ScanKvError
from scankv.model.names import check_principal
from streaming_server.storage.transactions.decisions import CommittedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Stored = TypeVar("_Stored")

_log: Final = logging.getLogger(__name__)

_UNREADABLE: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    pa.ArrowException,
)
_SIMPLE: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "bytes": (bytes,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "Mapping[str, Any]": (dict,),
}
_TEXTS: Final = "Mapping[str, str]"
_NAMES: Final = {
    int: "a whole number of up to 64 bits",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
}
_LARGEST: Final = 2**63 - 1
_LARGEST_BUCKET: Final = 2**32 - 1
_LATEST_MICROS: Final = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds since 1970 UTC: Python's `datetime` has no later instants."""

_LONGEST_SHOWN: Final = 40


def check_fields(value: _Stored) -> _Stored:
    """Returns a dataclass that was read from JSON. Its simple fields have their types, and its numbers fit in 64 bits.

    Raises:
        ValueError: A field has another type, or a number is too large.
    """
    for field in fields(value):  # type: ignore[arg-type]  # always a dataclass
        found = getattr(value, field.name)
        # Annotations are text here.
        type_ = str(field.type)
        if type_ == _TEXTS:
            _check(field.name, found, (dict,))
            found, type_ = found.values(), "str"
        elif type_.startswith("tuple[") and type_.endswith(", ...]"):
            type_ = type_[len("tuple[") : -len(", ...]")]
        else:
            found = [found]
        for item in found if type_ in _SIMPLE else ():
            _check(field.name, item, _SIMPLE[type_])
    return value


def _check(name: str, value: Any, types: tuple[type, ...]) -> None:  # noqa: ANN401  # any JSON
    # Not isinstance: True is an int.
    if type(value) not in types or (type(value) is int and abs(value) > _LARGEST):
        shown = repr(value)[:_LONGEST_SHOWN]
        allowed = " or ".join(_NAMES.get(each, "an object") for each in types)
        raise ValueError(f"{name} must be {allowed}, not {shown}")
    if name.endswith("micros") and type(value) is int and not 0 <= value <= _LATEST_MICROS:
        raise ValueError(f"{name} must be between 0 and {_LATEST_MICROS}, not {value}")


@contextmanager
def translate_unreadable(what: str) -> Iterator[None]:
    """Converts the errors from content that is not as ScanKV writes it.

    Args:
        what: The content, for errors.

    Raises:
        DataLoss: It cannot be read.
        NewerFormat: A newer ScanKV has written it.
    """
    try:
        yield
    except NewerFormat as error:
        raise NewerFormat(f"{what} cannot be read: {error.message}") from error
    except (ScanKvError, OSError, *_UNREADABLE) as error:  # OSError: of Arrow, for a schema
        raise DataLoss(f"{what} cannot be read: {error}") from error


@contextmanager
def translate_unusable(what: str) -> Iterator[None]:
    """Converts the errors from content whose fields have the right types, but that makes no sense.

    A mistake of ScanKV would look the same, so the log has the traceback.

    Raises:
        DataLoss: It makes no sense.
    """
    try:
        yield
    except ScanKvError:
        raise
    except _UNREADABLE as error:
        shown = f"{type(error).__name__}: {error}"
        _log.error("%s cannot be used: %s", what, shown, exc_info=error)
        raise DataLoss(f"{what} cannot be used, because it contradicts itself or its files ({shown})") from error


def commits_to_json(committed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the fields with the commits of transactions.

    Their principals stand apart, because version 0.1.0 could not read them among the other values.
    """
    return {
        "committed": [{name: value for name, value in each.items() if name != "principal"} for each in committed],
        "principals": {each["token"]: each["principal"] for each in committed if each.get("principal")},
    }


def commits_from_json(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Reads the result of `commits_to_json`, or the fields of an earlier version, which knew no principals.

    A restore writes the commits to the transaction log, which the next server must be able to read.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, InvalidRequest: They are not as ScanKV writes them.
    """
    principals = values.get("principals", {})
    for principal in principals.values():
        _check("a principal", principal, (str,))
        check_principal(principal)
    return tuple(_check_commit(each, principals) for each in values["committed"])


def _check_commit(stored: Mapping[str, Any], principals: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns the stored form of a commit with its principal."""
    if "principal" in stored:
        raise ValueError("the principal of a commit stands apart from it")
    commit = check_fields(CommittedTransaction.from_json(dict(stored)))
    for text in (commit.token, commit.id, *commit.tables, *commit.tables.values()):
        text.encode()
    for name, number in (("number", commit.number), ("rows", commit.rows), ("coordinator", commit.coordinator or 0)):
        _check_count(name, number, _LARGEST)
    for table, offsets in commit.log_offsets.items():
        if table not in commit.tables:
            raise ValueError(f"log_offsets has the table {table[:_LONGEST_SHOWN]!r}, which tables lacks")
        for bucket, offset in offsets.items():
            _check("log_offsets", offset, (int,))
            _check_count("a bucket in log_offsets", bucket, _LARGEST_BUCKET)
            _check_count("log_offsets", offset, _LARGEST)
    principal = principals.get(commit.token)
    return {**stored} if principal is None else {**stored, "principal": principal}


def _check_count(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be between 0 and {most}, not {str(value)[:_LONGEST_SHOWN]}")
