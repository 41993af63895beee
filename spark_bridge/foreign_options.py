"""Hints for options of other connectors: which option or method of ScanKV serves the same purpose."""

from __future__ import annotations

from typing import Final

_PAST: Final = (
    "load() reads the table as it is now; to read an earlier version of a published table, use "
    "scankv.spark.table(spark, url, name, lake=LOCATION, as_of=VERSION_OR_TIME); to read the current state again "
    'later, pin it with table.snapshot() and set option("snapshot", snapshot.id)'
)
_START: Final = "use option start of readStream: full, earliest, latest, last:100, a time or the offsets"
_STOP: Final = "use option stop of readStream: a time or the offsets"
_FEED: Final = 'to read changes, use readStream with option("row_kinds", "true")'
_ROWS: Final = "use option max_rows_per_trigger or max_bytes_per_trigger to limit a micro-batch"
_SPLITS: Final = "use option splits for the number of tasks, or rows_per_split for the rows that each task reads"
_URL: Final = 'use option url for the server, "host:port"'
_TABLE: Final = 'name the table with option table or load("database.table")'
_WHERE: Final = "use option where for a predicate that the server evaluates, and columns for the columns to read"
_ONCE: Final = "use option transaction_id: what is written under one id is written once"
_SECRET: Final = (
    "Spark shows and stores options, so none contains a secret; use option token_file, token_env or profile, which "
    "each executor reads itself"
)
_NEVER_LOST: Final = "a query whose changes are lost always fails; it never continues with a gap"
_REPLACE: Final = (
    'mode("overwrite") replaces all rows, or those that match option replace_where; to delete some rows, use '
    'option("operation", "delete")'
)
_COMMITTED: Final = (
    "queries read snapshots, and streams store offsets, so Spark always reads committed rows and changes"
)

# Keys are lower-case option names without separators.
_HINTS: Final = {
    "timestampasof": _PAST,
    "isolation": _COMMITTED,
    "isolationlevel": _COMMITTED,
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
    "token": _SECRET,
    "password": _SECRET,
    "secret": _SECRET,
    "apikey": _SECRET,
    "accesstoken": _SECRET,
    "bearertoken": _SECRET,
    "authorization": _SECRET,
    "groupid": "use option consumer_id for the consumer that keeps the changes",
    "failondataloss": _NEVER_LOST,
    "ignoredeletes": _FEED,
    "ignorechanges": _FEED,
    "skipchangecommits": _FEED,
    "txnappid": _ONCE,
    "txnversion": _ONCE,
    "overwriteschema": _REPLACE,
    "partitionoverwritemode": _REPLACE,
    "overwritemode": _REPLACE,
    "truncate": _REPLACE,
    "mergeschema": "to add columns, call alter_table(name, add_columns=...)",
    "keycolumn": "use option primary_key, with create=true, for the key columns",
    "batchsize": "the size of requests cannot be set",
}


def hint_for(name: str) -> str | None:
    """Returns what to use instead of another connector's option, or None if the option is unknown."""
    return _HINTS.get("".join(letter for letter in name.lower() if letter.isalnum()))
