"""Queries of the kind of TPC-H over live tables, which others write, have the answers that they have over files."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest

from aio_client import sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(600)

KEYS: Final = {"customer": ["c_custkey"], "orders": ["o_orderkey"], "lineitem": ["l_orderkey", "l_linenumber"]}
# Rows that others write have negative keys. Each query sees the rest, under the name of the table.
SEEN: Final = {name: f"{name} as (select * from tpch.{name} where {keys[0]} > 0)" for name, keys in KEYS.items()}

QUERIES: Final = (
    # Those of TPC-H that need no other table, with its constants.
    """select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
       sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
       avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
       from lineitem where l_shipdate <= date '1998-12-01' - interval 90 day group by all""",
    """select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
       from customer, orders, lineitem where c_mktsegment = 'BUILDING' and c_custkey = o_custkey
       and l_orderkey = o_orderkey and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
       group by all order by revenue desc, l_orderkey limit 10""",
    """select o_orderpriority, count(*) from orders where o_orderdate >= date '1993-07-01'
       and o_orderdate < date '1993-10-01' and exists (select * from lineitem where l_orderkey = o_orderkey
       and l_commitdate < l_receiptdate) group by all""",
    """select c_nationkey, sum(l_extendedprice * (1 - l_discount)) from customer, orders, lineitem
       where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey % 25 = c_nationkey
       and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01' group by all""",
    """select sum(l_extendedprice * l_discount) from lineitem where l_shipdate >= date '1994-01-01'
       and l_shipdate < date '1995-01-01' and l_discount between 0.05 and 0.07 and l_quantity < 24""",
    """select c_nationkey, l_suppkey % 25, extract(year from l_shipdate), sum(l_extendedprice * (1 - l_discount))
       from lineitem join orders on o_orderkey = l_orderkey join customer on c_custkey = o_custkey
       where l_shipdate between date '1995-01-01' and date '1996-12-31' and c_nationkey in (7, 8) group by all""",
    """select year, sum(case when nation = 3 then volume else 0 end) / sum(volume) from
       (select extract(year from o_orderdate) as year, l_extendedprice * (1 - l_discount) as volume,
       c_nationkey as nation from lineitem, orders, customer where l_orderkey = o_orderkey and o_custkey = c_custkey
       and o_orderdate between date '1995-01-01' and date '1996-12-31') group by year""",
    """select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal
       from customer, orders, lineitem where c_custkey = o_custkey and l_orderkey = o_orderkey
       and o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
       group by all order by revenue desc, c_custkey limit 20""",
    """select l_shipmode, count(*) filter (o_orderpriority in ('1-URGENT', '2-HIGH')),
       count(*) filter (o_orderpriority not in ('1-URGENT', '2-HIGH')) from orders, lineitem
       where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate
       and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
       group by all""",
    """select c_count, count(*) from (select c_custkey, count(o_orderkey) as c_count from customer
       left join orders on c_custkey = o_custkey and o_comment not like '%7%' group by all) group by all""",
    """select 100 * sum(case when l_partkey % 5 = 0 then l_extendedprice * (1 - l_discount) else 0 end)
       / sum(l_extendedprice * (1 - l_discount)) from lineitem
       where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'""",
    """with revenue as (select l_suppkey, sum(l_extendedprice * (1 - l_discount)) as total from lineitem
       where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01' group by all)
       select * from revenue where total = (select max(total) from revenue)""",
    """select sum(l_extendedprice) / 7.0 from lineitem as outside where l_quantity <
       (select 0.2 * avg(l_quantity) from lineitem where l_partkey = outside.l_partkey)""",
    """select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) from customer, orders, lineitem
       where o_orderkey in (select l_orderkey from lineitem group by all having sum(l_quantity) > 130)
       and c_custkey = o_custkey and o_orderkey = l_orderkey group by all""",
    """select sum(l_extendedprice * (1 - l_discount)) from lineitem where l_shipmode in ('AIR', 'REG AIR')
       and ((l_partkey % 3 = 0 and l_quantity between 1 and 11) or (l_partkey % 3 = 1 and l_quantity between 10 and 20)
       or (l_partkey % 3 = 2 and l_quantity between 20 and 30))""",
    """select l_suppkey, count(*) from lineitem as late, orders where o_orderkey = l_orderkey and o_orderstatus = 'F'
       and l_receiptdate > l_commitdate and exists (select * from lineitem as other
       where other.l_orderkey = late.l_orderkey and other.l_suppkey <> late.l_suppkey)
       and not exists (select * from lineitem as other where other.l_orderkey = late.l_orderkey
       and other.l_suppkey <> late.l_suppkey and other.l_receiptdate > other.l_commitdate) group by all""",
    """select c_phone[1:2], count(*), sum(c_acctbal) from customer
       where c_acctbal > (select avg(c_acctbal) from customer where c_acctbal > 0)
       and not exists (select * from orders where o_custkey = c_custkey) group by all""",
    # What the server computes by itself, or leaves to DuckDB.
    "select count(*) from tpch.lineitem where l_orderkey > 0 and l_quantity > 30",
    "select count(*) from tpch.orders where o_orderkey > 0 and o_comment is null",
    "select min(o_orderdate), max(o_orderdate), sum(o_totalprice) from tpch.orders where o_orderkey > 0",
    "select c_mktsegment, count(*), sum(c_acctbal) from tpch.customer where c_custkey > 0 group by c_mktsegment",
    "select * from tpch.orders where o_orderkey > 0 order by o_totalprice desc, o_orderkey limit 7",
    "select * from tpch.lineitem where l_orderkey = 33",
    "select * from tpch.orders where o_orderkey in (1, 5, 1000, -4, 77) and o_orderkey > 0",
    "select distinct l_shipmode, l_returnflag from tpch.lineitem where l_orderkey > 0",
    "select count(distinct o_custkey), count(o_comment) from orders",
    "select approx_count_distinct(l_orderkey) > 0 from lineitem where l_tax >= 0.05",
    # Other constructs.
    "select o_orderstatus, o_orderpriority, count(*) from orders group by rollup (o_orderstatus, o_orderpriority)",
    """select l_shipmode, l_linestatus, sum(l_quantity) from lineitem
       group by grouping sets ((l_shipmode), (l_linestatus))""",
    """select o_custkey, o_orderkey, row_number() over (partition by o_custkey order by o_orderdate, o_orderkey),
       sum(o_totalprice) over (partition by o_custkey order by o_orderdate, o_orderkey) from orders
       where o_custkey < 40""",
    """select * from orders qualify rank() over (partition by o_orderpriority order by o_totalprice desc, o_orderkey)
       <= 3""",
    "select date_trunc('month', o_orderdate), count(*), median(o_totalprice) from orders group by all",
    "select c_custkey from customer except select o_custkey from orders",
    "select c_custkey from customer where c_nationkey = 4 intersect select o_custkey from orders",
    "select 'orders', count(*) from orders union all select 'lineitem', count(*) from lineitem",
    """select c_custkey, latest.o_orderkey from customer, lateral (select o_orderkey from orders
       where o_custkey = c_custkey order by o_orderdate desc, o_orderkey limit 1) as latest where c_nationkey = 11""",
    """select * from (select o_orderstatus, o_orderpriority, o_totalprice from orders)
       pivot (sum(o_totalprice) for o_orderstatus in ('F', 'O', 'P'))""",
    """select upper(c_name), c_acctbal::int, coalesce(o_comment, 'none') from customer left join orders
       on o_custkey = c_custkey and o_totalprice > 400000 where c_name like '%9'""",
    """select l_orderkey, list(l_linenumber order by l_linenumber), string_agg(l_shipmode, '/' order by l_linenumber)
       from lineitem where l_orderkey between 100 and 160 group by all""",
    """select left_one.o_orderkey, right_one.o_orderkey from orders as left_one join orders as right_one
       on left_one.o_custkey = right_one.o_custkey and left_one.o_orderdate < right_one.o_orderdate
       where left_one.o_orderkey < 200""",
)


GENERATE: Final = """
create macro pick(number, salt, most) as (hash(number * 64 + salt) % most)::bigint;
create macro word(number, salt, words) as words[pick(number, salt, len(words)) + 1];
create macro money(number, salt, most) as (pick(number, salt, most * 100)::decimal(18, 0) / 100)::decimal(15, 2);
create table customer as select k as c_custkey, 'Customer#' || k as c_name, pick(k, 1, 25)::integer as c_nationkey,
    (10 + pick(k, 1, 25)) || '-' || pick(k, 2, 1000) as c_phone,
    (money(k, 3, 11000) - 1000)::decimal(15, 2) as c_acctbal,
    word(k, 4, ['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'HOUSEHOLD', 'MACHINERY']) as c_mktsegment
    from (select unnest(range(1, $orders // 10 + 1)) as k);
create table orders as select k as o_orderkey, 1 + pick(k, 1, $orders // 10) // 3 * 3 as o_custkey,
    word(k, 2, ['F', 'O', 'P']) as o_orderstatus, money(k, 3, 500000) as o_totalprice,
    date '1992-01-01' + pick(k, 4, 2406)::integer as o_orderdate,
    word(k, 5, ['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW']) as o_orderpriority,
    0::integer as o_shippriority, if(pick(k, 6, 9) = 0, null, 'order ' || pick(k, 7, 999)) as o_comment
    from (select unnest(range(1, $orders + 1)) as k);
create table lineitem as select o_orderkey as l_orderkey, n::integer as l_linenumber, pick(i, 1, 200) as l_partkey,
    pick(i, 2, 100) as l_suppkey, (1 + pick(i, 3, 50))::decimal(15, 2) as l_quantity,
    money(i, 4, 95000) as l_extendedprice,
    (pick(i, 5, 11) / 100)::decimal(15, 2) as l_discount, (pick(i, 6, 9) / 100)::decimal(15, 2) as l_tax,
    word(i, 7, ['R', 'A', 'N']) as l_returnflag, word(i, 8, ['O', 'F']) as l_linestatus,
    o_orderdate + (1 + pick(i, 9, 121))::integer as l_shipdate,
    o_orderdate + (30 + pick(i, 10, 61))::integer as l_commitdate,
    o_orderdate + (2 + pick(i, 11, 150))::integer as l_receiptdate,
    word(i, 12, ['AIR', 'FOB', 'MAIL', 'RAIL', 'REG AIR', 'SHIP', 'TRUCK']) as l_shipmode
    from (select *, o_orderkey * 8 + n as i from orders, (select unnest(range(1, 8)) as n)
    where n <= 1 + pick(o_orderkey, 8, 7));
"""
"""Tables in the proportions of TPC-H, with its columns but for some comments. Two of three customers order nothing."""


@contextmanager
def writing(url: str, rows: dict[str, pa.Table]) -> Iterator[list[int]]:
    """Writes rows with negative keys in a thread, to all tables by one transaction each time. Yields how often."""
    done, failures, written = threading.Event(), list[BaseException](), [0]

    def write() -> None:
        try:
            with sync.connect(url) as client:
                while not done.is_set():
                    with client.transaction() as transaction:
                        for name, each in rows.items():
                            transaction.upsert(client.table(f"tpch.{name}"), each)
                    written[0] += 1
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        done.set()
        writer.join()
    assert not failures, failures


def negative(rows: pa.Table, key: str) -> pa.Table:
    """Returns rows with the negative of a key."""
    place = rows.schema.get_field_index(key)
    return rows.set_column(place, rows.schema.field(place), pa.compute.negate(rows[key]))


def text_of(query: str) -> str:
    """Returns a query that sees only rows with positive keys."""
    seen = [text for name, text in SEEN.items() if re.search(rf"(?<![.]){name}\b", query)]
    if not seen:
        return query
    return f"with {', '.join(seen)}{', ' if query.startswith('with ') else ' '}{query.removeprefix('with ')}"


def sorted_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Returns rows as tuples, sorted, with floats of 12 digits: the order of a sum is not that of another run."""
    found = [
        tuple(f"{each:.12g}" if isinstance(each, float) else each for each in row.values()) for row in rows.to_pylist()
    ]
    return sorted(found, key=repr)


# The full size is that of TPC-H at scale 0.1: 600,000 rows of lineitem.
@pytest.mark.parametrize("orders", [1_500, pytest.param(150_000, marks=pytest.mark.soak)])
def test_forty_queries_over_live_tables_have_the_answers_of_files(
    server: ServerProcess, tmp_path: Path, orders: int
) -> None:
    with duckdb.connect() as con, sync.connect(server.url) as client:
        con.execute(GENERATE.replace("$orders", str(orders)))
        con.execute("create schema tpch")
        others = {}
        for name, keys in KEYS.items():
            rows = con.sql(f"from {name}").to_arrow_table()
            pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet")
            con.execute(f"create view tpch.{name} as from '{tmp_path / name}.parquet'")
            con.execute(f"drop table {name}")
            client.create_table(f"tpch.{name}", rows.schema, primary_key=keys).upsert(rows)
            others[name] = negative(rows.slice(0, 50), keys[0])
        assert len(QUERIES) == 40
        with writing(server.url, others) as written:
            for number, query in enumerate(map(text_of, QUERIES), 1):
                found, expected = client.sql(query).to_arrow(), con.sql(query).to_arrow_table()
                assert found.schema.types == expected.schema.types, query
                assert sorted_rows(found) == sorted_rows(expected), query
                assert expected.num_rows > 0, query
                least = number // 4
                wait_until(lambda: written[0] >= least, "others write during the queries")  # noqa: B023  # called at once
