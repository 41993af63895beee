"""Spans of Spark's planning, tasks and commits: they belong to the trace of the program, across processes."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.propagate import inject

from aio_client import UsageError, sync
from spark_bridge.casting import arrow_schema
from spark_bridge.dataframe import _task_function
from spark_bridge.options import ReadOptions
from spark_bridge.part_rows import read_part
from spark_bridge.planning import plan_read
from spark_bridge.types import spark_schema
from spark_bridge.write_options import WriteOptions
from spark_bridge.writing import begin, commit, prepare_write, stage
from tests.spark.task import task_context
from tests.support.traces import attributes_of, is_child, traced_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("secret", pa.string())])
ROWS = 1000
SECRET = "hunter2"
TRACE = "11111111111111111111111111111111"
TRACEPARENT = f"00-{TRACE}-2222222222222222-01"


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"])
    table.upsert(pa.table({"k": range(ROWS), "secret": [SECRET] * ROWS}))
    return table


def test_plan_and_tasks_of_a_read_are_children_of_the_span_of_the_program(
    shared_server: ServerProcess, table: sync.Table
) -> None:
    options = ReadOptions(url=shared_server.url, table=table.name, splits=2, where=f"secret = '{SECRET}'")
    with traced_process() as spans:
        with trace.get_tracer("test").start_as_current_span("program"):
            plan = plan_read(options)
        rows = 0
        for number, part in enumerate(plan.parts):
            with task_context(number, stage=7):
                pickled = pickle.loads(pickle.dumps(part))
                rows += sum(batch.num_rows for batch in read_part(pickled, arrow_schema(plan.schema)))
        program, planned, reads = spans.one("program"), spans.one("scankv.spark.plan"), spans.named("scankv.spark.read")
        assert rows == ROWS
        assert all(is_child(span, program) for span in (planned, *reads))
        assert [attributes_of(span) for span in reads] == [
            {
                "db.system.name": "scankv",
                "db.collection.name": table.name,
                "scankv.spark.stage": 7,
                "scankv.spark.partition": number,
            }
            for number in range(2)
        ]
        assert any(is_child(call, planned) for call in spans.named("scankv.v1.TableService/GetTable"))
        scans = spans.named("scankv.v1.ScanService/ScanKv", "CLIENT")
        assert [is_child(scan, read) for scan, read in zip(scans, reads, strict=True)] == [True, True]
        assert sum(attributes_of(scan)["scankv.scan.rows"] for scan in scans) == ROWS  # type: ignore[misc]
        assert SECRET not in spans.text()


def test_the_option_traceparent_is_the_parent_where_spark_plans_in_another_process(
    shared_server: ServerProcess, table: sync.Table
) -> None:
    options = ReadOptions(url=shared_server.url, table=table.name, traceparent=TRACEPARENT)
    # In a process without OpenTelemetry, it is passed on.
    assert plan_read(options).parts[0].traceparent == TRACEPARENT
    assert plan_read(replace(options, traceparent=None)).parts[0].traceparent is None
    with traced_process() as spans:
        plan = plan_read(options)
        with task_context(0):
            # A task that wants no more rows has not failed.
            rows = read_part(plan.parts[0], arrow_schema(plan.schema))
            next(rows)
            rows.close()
        found = [spans.one(f"scankv.spark.{work}") for work in ("plan", "read")]
        assert [f"{span.parent.trace_id:032x}" for span in found if span.parent is not None] == [TRACE, TRACE]
        assert [span.status.status_code for span in found] == [trace.StatusCode.UNSET] * 2


def test_all_phases_of_a_write_belong_to_the_trace_of_the_program(
    shared_server: ServerProcess, table: sync.Table
) -> None:
    options = WriteOptions(url=shared_server.url, table=table.name, traceparent=TRACEPARENT)
    with traced_process() as spans:
        job = pickle.loads(pickle.dumps(prepare_write(options, spark_schema(SCHEMA), replaces=False)))
        begun = begin(job, "spark-traced", "attempt")
        batch = pa.record_batch({"k": [1], "secret": [SECRET]}, schema=SCHEMA)
        with task_context(3):
            staged = stage(job, begun, 3, [batch])
        commit(job, begun, [staged])
        works = {work: spans.one(f"scankv.spark.{work}") for work in ("plan", "begin", "write", "commit")}
        assert {f"{span.parent.trace_id:032x}" for span in works.values() if span.parent is not None} == {TRACE}
        for work, call in (
            ("begin", "TransactionService/BeginTransaction"),
            ("write", "WriteService/Upsert"),
            ("commit", "TransactionService/CommitTransaction"),
        ):
            assert any(is_child(span, works[work]) for span in spans.named(f"scankv.v1.{call}", "CLIENT"))
        assert attributes_of(works["write"])["scankv.spark.partition"] == 3
        assert SECRET not in spans.text()


@pytest.mark.parametrize("text", ["", "x", f"{TRACEPARENT}0", TRACEPARENT.upper().replace("1", "G")])
def test_a_traceparent_of_another_form_is_refused(text: str) -> None:
    for options in (ReadOptions, WriteOptions):
        with pytest.raises(UsageError, match="option traceparent must be a traceparent of W3C"):
            options.parse({"url": "localhost:1", "table": "a.b", "traceparent": text})


def traced_task(
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], directory: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a task that configures OpenTelemetry in its process, and writes its spans to a file."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tests.support.traces import traced_process

        with traced_process() as spans:
            yield from task(numbers)
            with open(f"{directory}/{os.getpid()}", "a") as file:
                file.writelines(json.dumps(json.loads(span.to_json())) + "\n" for span in spans.all)

    return run


def test_tasks_in_processes_of_spark_continue_the_trace_of_the_program(
    spark: SparkSession, shared_server: ServerProcess, table: sync.Table, tmp_path: Path
) -> None:
    with traced_process() as spans:
        with trace.get_tracer("test").start_as_current_span("program"):
            plan = plan_read(ReadOptions(url=shared_server.url, table=table.name, splits=2))
        program = spans.one("program").get_span_context()
    parts = spark.range(0, 2, 1, 2)
    read = traced_task(_task_function(plan.parts, plan.schema), str(tmp_path))
    assert parts.mapInArrow(read, plan.schema).count() == ROWS
    found = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert program is not None
    assert {span["context"]["trace_id"] for span in found} == {f"0x{program.trace_id:032x}"}
    reads = [span for span in found if span["name"] == "scankv.spark.read"]
    scans = [span for span in found if span["name"] == "scankv.v1.ScanService/ScanKv"]
    assert [span["parent_id"] for span in reads] == [f"0x{program.span_id:016x}"] * 2
    assert sorted(span["parent_id"] for span in scans) == sorted(span["context"]["span_id"] for span in reads)


def test_a_program_passes_its_trace_in_the_option(load: Callable[..., DataFrame], table: sync.Table) -> None:
    carrier: dict[str, Any] = {}
    with traced_process(), trace.get_tracer("test").start_as_current_span("program"):
        inject(carrier)
    # The processes of Spark have no OpenTelemetry here, and ignore it.
    assert load(table.name, traceparent=carrier["traceparent"]).count() == ROWS
