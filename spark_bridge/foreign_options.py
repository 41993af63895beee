"""What options of other connectors are called here, for those who come from them."""

from __future__ import annotations

from typing import Final

_PAST: Final = (
    'a table is read as it is now; pin a snapshot, table.snapshot(), and read that with option("snapshot", snapshot.id)'
)
_START: Final = "readStream takes option start: full, earliest, latest, last:100, a time or the offsets"
_STOP: Final = "readStream takes option stop: a time or the offsets"
_FEED: Final = 'changes are read with readStream and option("row_kinds", "true")'
_ROWS: Final = "option max_rows_per_trigger bounds a micro-batch in rows, and max_bytes_per_trigger in bytes"
_SPLITS: Final = "option splits says how many tasks read, or rows_per_split how many rows each"
_URL: Final = 'option url is the server, "host:port"'
_TABLE: Final = 'option table, or load("database.table"), is the table'
_WHERE: Final = "option where is a predicate that the server evaluates, and columns are the columns to read"
_ONCE: Final = "option transaction_id names what is written, so that it is written once"
_NEVER_LOST: Final = "a query whose changes are gone fails, and never goes on with a hole; it cannot be told otherwise"
_REPLACE: Final = 'mode("overwrite") replaces all rows; a part of them is deleted with operation=delete'

# By name in small letters, without what separates words.
_HINTS: Final = {
    "timestampasof": _PAST,
    "versionasof": _PAST,
    "asoftimestamp": _PAST,
    "snapshotid": _PAST,
    "snapshottimemillis": _PAST,
    "scansnapshotid": _PAST,
    "scantimestampmillis": _PAST,
    "scantagname": _PAST,
    "startsnapshotid": _FEED,
    "endsnapshotid": _FEED,
    "incrementalbetween": _FEED,
    "hoodiedatasourcequerytype": _FEED,
    "scanmode": _START,
    "startingoffsets": _START,
    "startingoffsetsbytimestamp": _START,
    "startingtimestamp": _START,
    "startingversion": _START,
    "startversion": _START,
    "starttimestamp": _START,
    "streamfromtimestamp": _START,
    "endingoffsets": _STOP,
    "endingoffsetsbytimestamp": _STOP,
    "endingtimestamp": _STOP,
    "endingversion": _STOP,
    "readchangefeed": _FEED,
    "readchangedata": _FEED,
    "readchangelog": _FEED,
    "readstreamreadchangelog": _FEED,
    "maxoffsetspertrigger": _ROWS,
    "minoffsetspertrigger": _ROWS,
    "maxfilespertrigger": _ROWS,
    "readstreammaxrowspertrigger": _ROWS,
    "readstreammaxbytespertrigger": _ROWS,
    "numpartitions": _SPLITS,
    "minpartitions": _SPLITS,
    "maxparallelism": _SPLITS,
    "partitioncolumn": _SPLITS,
    "lowerbound": _SPLITS,
    "upperbound": _SPLITS,
    "fetchsize": _SPLITS,
    "kafkabootstrapservers": _URL,
    "bootstrapservers": _URL,
    "host": _URL,
    "hosts": _URL,
    "port": _URL,
    "endpoint": _URL,
    "address": _URL,
    "uri": _URL,
    "dbtable": _TABLE,
    "tablename": _TABLE,
    "subscribe": _TABLE,
    "topic": _TABLE,
    "query": _WHERE,
    "filter": _WHERE,
    "predicate": _WHERE,
    "select": _WHERE,
    "keyspattern": _WHERE,
    "groupid": "option consumer_id names the consumer in whose name the changes are kept",
    "failondataloss": _NEVER_LOST,
    "ignoredeletes": _FEED,
    "ignorechanges": _FEED,
    "skipchangecommits": _FEED,
    "txnappid": _ONCE,
    "txnversion": _ONCE,
    "replacewhere": _REPLACE,
    "overwriteschema": _REPLACE,
    "partitionoverwritemode": _REPLACE,
    "overwritemode": _REPLACE,
    "truncate": _REPLACE,
    "mergeschema": "columns are added with alter_table(name, add_columns=...)",
    "keycolumn": "with create=true, option primary_key names the key columns",
    "batchsize": "rows are sent in requests of a size that suits the server; there is nothing to set",
}


def hint_for(name: str) -> str | None:
    """What to use instead of an option of another connector; None when it is not known."""
    return _HINTS.get("".join(letter for letter in name.lower() if letter.isalnum()))
