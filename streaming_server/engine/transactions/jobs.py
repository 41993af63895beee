"""Whether a table has the rows of the transactions that a job has committed to it before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import TableRecreated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.transactions.committed_transactions import CommittedTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A transaction of a job, which fills a table with one transaction after another. Immutable.

    Attributes:
        id: The id of the transaction. Ids of one job are equal up to their last `:`.
        table: The table.
        follows: The id of the transaction before this one. Empty: this one is the first.
        accepted: The incarnation of the table that need not have the rows of earlier transactions. Empty: none.
    """

    id: str
    table: str
    follows: str = ""
    accepted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMemory:
    """What one worker process knows of a job and its table. Immutable.

    Attributes:
        incarnation: The incarnation of the table. Empty: another worker owns it.
        has_predecessor: Whether the table was restored, or another table of its name was dropped.
        committed: The incarnation of the table to which the id was committed. Empty: it is not known to be committed.
        followed: The same for the transaction before it.
        knows_job: Whether a transaction of the job is remembered.
        last: The id of the last transaction of the job that was committed to the table. Empty: none is remembered.
        last_incarnation: The incarnation of the table to which the last transaction was committed.
    """

    incarnation: str = ""
    has_predecessor: bool = False
    committed: str = ""
    followed: str = ""
    knows_job: bool = False
    last: str = ""
    last_incarnation: str = ""


def recall_job(step: JobRequest, remembered: CommittedTransactions, table: TableDefinition | None) -> JobMemory:
    """Returns what a worker process knows of a job and its table.

    Args:
        step: The transaction that is to begin.
        remembered: The commits that the worker remembers.
        table: The table. None: another worker owns it.
    """
    committed, followed = remembered.with_id(step.id), remembered.with_id(step.follows)
    last = remembered.last_of_family(step.id)
    last_incarnation = "" if last is None else last.incarnation_of(step.table)
    return JobMemory(
        incarnation="" if table is None else table.incarnation,
        has_predecessor=table is not None and table.has_predecessor,
        committed="" if committed is None else committed.incarnation_of(step.table),
        followed="" if followed is None else followed.incarnation_of(step.table),
        knows_job=last is not None,
        last=last.id if last is not None and last_incarnation else "",
        last_incarnation=last_incarnation,
    )


def check_job(step: JobRequest, memories: Iterable[JobMemory]) -> None:
    """Checks that the current table has all rows that a job has committed before a transaction.

    Rule: one remembered transaction proves all earlier ones, because a job commits them one after another. If no
    transaction is remembered, as after a long pause of the job, a table that never had a predecessor has lost nothing.

    Args:
        step: The transaction that is to begin.
        memories: What each worker knows.

    Raises:
        TableRecreated: The table lacks rows, or it is unknown whether it has them. `details` has in `last` the id of
            the last transaction of the job that the table has, if one is known.
    """
    memories = list(memories)
    incarnation = max(each.incarnation for each in memories)
    committed = {each.committed for each in memories} - {""}
    followed = {each.followed for each in memories} - {""}
    if step.accepted == incarnation or incarnation in committed:
        return
    if not committed:
        if not step.follows or incarnation in followed:
            return
        # The last transaction of a job with numbered ids is never forgotten while its table exists.
        is_known = any(each.knows_job for each in memories) or ":" not in step.follows
        if not followed and is_known and not any(each.last or each.has_predecessor for each in memories):
            return
    last = max((each.last for each in memories if each.last_incarnation == incarnation), key=_order, default="")
    missing = step.id if committed else step.follows
    has = f'the last one of the job that it has is "{last}"' if last else "it is not known to have any of the job"
    raise TableRecreated(
        f'table {step.table} lacks the rows of the transaction "{missing}": {has}. The table was restored as of an '
        "earlier instant, or dropped and created again, since that transaction was committed. To continue without the "
        f'missing rows, accept the incarnation "{incarnation}" of the table: `JobStep.accepted_incarnation`, or in '
        "Spark the option accept_incarnation",
        table=step.table,
        incarnation=incarnation,
        last=last or None,
    )


def _order(id_: str) -> tuple[int, str]:
    """Orders the ids of a job: by number, if they have one."""
    number = id_.rpartition(":")[2]
    return (int(number) if number.isdecimal() else -1, id_)
