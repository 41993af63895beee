"""The transactions of micro-batches: their ids, their order, and the error if a restored table lacks some of them."""

from __future__ import annotations

from hashlib import sha256

from aio_client import JobStep, TableRecreated


def transaction_id(query: str, table: str, batch: int) -> str:
    """Returns the id of a micro-batch's transaction. Ids of one query and table are equal up to the last `:`."""
    return f"spark:{query}:{sha256(table.encode()).hexdigest()[:16]}:{batch}"


def job_step(query: str, table: str, batch: int, *, replaces: bool, accepted: str | None) -> JobStep:
    """Returns the step of a micro-batch in the job of its query: which transaction its transaction follows.

    Rule: Spark counts the micro-batches of a checkpoint from 0, and writes each of them with at least one task. So
    each has a transaction, even if it has no rows. A micro-batch that replaces the table does not need earlier ones.

    Args:
        query: The id of the query, which its checkpoint has.
        table: The table.
        batch: The number of the micro-batch.
        replaces: Whether the micro-batch replaces all rows of the table.
        accepted: The incarnation of the table that may lack rows of earlier micro-batches. None: the table must have
            all rows.
    """
    follows = "" if replaces or batch == 0 else transaction_id(query, table, batch - 1)
    return JobStep(table=table, follows=follows, accepted_incarnation=accepted or "")


def missing_batches(error: TableRecreated, batch: int) -> TableRecreated:
    """Returns the error of a query that cannot continue, with the numbers of the micro-batches that the table lacks.

    Args:
        error: Why the server does not begin the transaction.
        batch: The number of the micro-batch.
    """
    table, incarnation = error.details.get("table", ""), error.details.get("incarnation", "")
    last = error.details.get("last", "").rpartition(":")[2]
    first = int(last) + 1 if last.isdecimal() else 0
    if first > batch:
        what = (
            f"has the micro-batches of this query up to {first - 1}, and its checkpoint continues with {batch}: the "
            "checkpoint is older than the table"
        )
    else:
        missing = f"micro-batch {first}" if first >= batch - 1 else f"micro-batches {first} to {batch - 1}"
        what = (
            f"lacks {missing} of this query, which its checkpoint counts as written: the table was restored as of an "
            "earlier instant, or dropped and created again, in the meantime"
        )
    message = (
        f'table {table} {what}. To continue with micro-batch {batch} nevertheless, set option("accept_incarnation", '
        f'"{incarnation}")'
    )
    return TableRecreated(message, table=table, incarnation=incarnation, last=error.details.get("last"))
