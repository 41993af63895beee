"""Public names keep the conventions of docs/reference/names.md: those of Python, commands, HTTP, settings, Spark.

The names are read from the code, so a new one is checked without being listed here.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_type_hints

import pytest
import typer

from http_gateway.operations import OPERATIONS
from scankv.cli.app import app
from scankv.lake.publisher import PublishReport
from scankv.model.tables.options import TableOptions
from spark_bridge.options import READ_NAMES, STREAM_NAMES
from spark_bridge.write_options import WRITE_NAMES
from streaming_server.config import ServerConfig
from streaming_server.engine.backups.restore import RestoredTable
from streaming_server.monitoring.catalog import SERVER_METRICS, STANDARD_METRICS, TABLE_METRICS

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ("scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing", "scankv.model.tables.agg")
FOREIGN: Final = {"builtins", "typing", "enum", "abc", "collections.abc"} | {
    "pyarrow._dataset",
    "pyspark.sql.datasource",
}

# Units other than seconds are in no name.
UNITS: Final = {"millis", "milliseconds", "micros", "microseconds", "nanos", "nanoseconds", "ms"} | {
    "minutes",
    "hours",
    "days",
}
# Short forms of units, which end a name. In front they are words of another meaning, such as `min_silence`.
SHORT_UNITS: Final = {"s", "sec", "secs", "min", "mins", "hour", "day"}
# What to say instead of a complete name, and instead of a word in a name.
NAMES: Final = {
    "at": "as_of, or a name that ends in _at",
    "by": "order_by",
    "n": "limit or count",
    "asc": "descending",
    "desc": "descending",
    "json_lines": "jsonl",
    "ndjson": "jsonl",
    "expires_in": "remaining",
    "seconds_left": "remaining",
    "created": "created_at",
    "expires": "expires_at",
    "revoked": "revoked_at",
    "last_write": "last_write_at",
    "last_completed": "last_completed_at",
    "view_time": "taken_at",
    "sort_by": "order_by",
    "aggregates": "aggregators",
    "aggregate_functions": "aggregators",
    "bucket_statistics": "stats",
}
# And instead of a complete name in one kind of place only.
NAMES_OF_KIND: Final = {
    ("method", "server_stats"): "stats",
    ("json", "time"): "the name of the instant, such as taken_at",
    ("http", "order"): "order_by or descending",
    ("http", "sort"): "order_by",
}
WORDS: Final = {"statistics": "stats", "statistic": "stats", "aggregates": "aggregators"}
# The ends of the names of settings with fractions that are no durations.
FRACTIONS: Final = ("_share", "_amplification", "_per_second")
# Dataclasses that are not public, and whose fields commands print as JSON.
PRINTED_CLASSES: Final = (PublishReport, RestoredTable)
ROW_COMMANDS: Final = ("scan", "get", "top", "tail")

# Each with the reason why the rule is not for it.
EXCEPTIONS: Final = {
    **{f"{each}{name}": "made by `timestamp`" for each in ("StartFrom", "StopAt") for name in (".micros", "(micros)")},
    **{f"ScanKvDataSource.{name}": "a method of pyspark" for name in ("streamReader", "streamWriter")},
    **{f"parameters.py: {name}": "a word of OpenAPI" for name in ("maxItems", "maxLength")},
    **{
        f"openapi.py: {name}": "a word of OpenAPI"
        for name in ("additionalProperties", "operationId", "securitySchemes")
    },
    **{f"sql.py: {name}": "a word of JSON schemas" for name in ("additionalProperties", "oneOf")},
    "ScanStream.watermark": "the word of stream processing",
    "RestoredTable.micros": "printed as taken_at",
    "ScanSpec.as_of": "has an instant or the number of a version",
    "scankv monitoring": "has no plural",
    "scankv tokens create --expires": "takes a time to live",
}


def is_excepted(place: str) -> bool:
    """Whether a name at a place may break a rule."""
    return place in EXCEPTIONS


class PublicName(NamedTuple):
    """A public name, the place that it has in a message, its kind, and for an attribute its annotation."""

    kind: str
    place: str
    name: str
    annotation: str = ""


def problem_of(found: PublicName) -> str | None:
    """Which convention a name breaks. None: it keeps them all."""
    if found.kind != "class" and re.search("[a-z][A-Z]", found.name):
        return "words are separated by _"
    name = found.name.lower()
    words = re.split(r"[_.-]+", name)
    if unit := UNITS.intersection(words):
        return f"say it in seconds, not in {unit.pop()}"
    if len(words) > 1 and words[-1] in SHORT_UNITS:
        return f"say it in seconds, without the unit {words[-1]}"
    for word in words:
        if word in WORDS:
            return f"say {WORDS[word]}, not {word}"
    if found.kind != "metric" and name in NAMES:
        return f"say {NAMES[name]}, not {name}"
    if (found.kind, name) in NAMES_OF_KIND:
        return f"say {NAMES_OF_KIND[found.kind, name]}, not {name}"
    if found.kind in {"attribute", "parameter", "json", "http"} and name.endswith("_seconds"):
        return "durations are seconds anyway: leave out _seconds"
    if found.kind == "attribute" and name == "seconds":
        return "say which duration it is, such as elapsed or age"
    if found.kind == "attribute" and ("datetime" in found.annotation) is not name.endswith("_at"):
        return "a point in time, and nothing else, ends in _at"
    if found.kind == "duration" and not name.endswith("_seconds"):
        return "a duration ends in _seconds here"
    return None


def problems_of(names: list[PublicName]) -> list[str]:
    """Returns the places of wrong names, each with what is wrong."""
    found = ((name.place, problem_of(name)) for name in names)
    return sorted({f"{place}: {problem}" for place, problem in found if problem is not None and not is_excepted(place)})


# Python


def _parameters(place: str, function: Callable[..., Any]) -> Iterator[PublicName]:
    for name in inspect.signature(function).parameters:
        if name not in {"self", "cls"} and not name.startswith("_"):
            yield PublicName("parameter", f"{place}({name})", name)


def _is_called_by_us(class_: type) -> bool:
    doc = inspect.getattr_static(class_, "__init__").__doc__ or ""
    return not dataclasses.is_dataclass(class_) and (not doc or doc.startswith("Called by"))


def public_members(class_: type) -> Iterator[tuple[str, object]]:
    """Yields the public members that we have named, and the constructor, if it is for users."""
    given = {name for base in class_.__mro__ if base.__module__ in FOREIGN for name in vars(base)}
    for base in class_.__mro__:
        if base.__module__ not in FOREIGN:
            found = vars(base).items()
            yield from ((name, member) for name, member in found if not name.startswith("_") and name not in given)


def names_of_class(class_: type) -> Iterator[PublicName]:
    """Yields the name of a class, of its members and of their parameters."""
    own = class_.__name__
    yield PublicName("class", own, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", own))
    if not _is_called_by_us(class_):
        yield from _parameters(own, class_)
    for name, member in public_members(class_):
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if inspect.isfunction(function):
            yield PublicName("method", f"{own}.{name}", name)
            # Decoders of messages of the wire.
            yield from _parameters(f"{own}.{name}", function) if name != "of" else ()
        elif isinstance(function, property) and function.fget is not None:
            annotation = str(function.fget.__annotations__.get("return"))
            yield PublicName("attribute", f"{own}.{name}", name, annotation)
    for field in dataclasses.fields(class_) if dataclasses.is_dataclass(class_) else ():
        if not field.name.startswith("_"):
            yield PublicName("attribute", f"{own}.{field.name}", field.name, str(field.type))


def _public_objects() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        found = importlib.import_module(module)
        yield from ((name, getattr(found, name)) for name in found.__all__)


def public_classes() -> list[type]:
    """Returns all classes that users see."""
    return [each for _, each in _public_objects() if inspect.isclass(each)]


def names_in_python() -> list[PublicName]:
    """Returns the names of all functions, classes, members and parameters."""
    names = [name for class_ in public_classes() for name in names_of_class(class_)]
    for name, each in _public_objects():
        if inspect.isfunction(each):
            names += [PublicName("method", name, name), *_parameters(name, each)]
    return names


def test_names_in_python_keep_the_conventions() -> None:
    names = names_in_python()
    assert len(names) > 1000
    assert problems_of(names) == []


def close_problem_of(class_: type) -> str | None:
    """How a class breaks the rule about `aclose` and `close`. None: it keeps it."""
    closing = [name for name, _ in public_members(class_) if name in {"aclose", "close"}]
    is_asynchronous = hasattr(class_, "__aexit__") or hasattr(class_, "__anext__")
    if "aclose" in closing and "close" in closing:
        return f"{class_.__name__} has both aclose and close"
    if "close" in closing and (is_asynchronous or inspect.iscoroutinefunction(getattr(class_, "close"))):  # noqa: B009
        return f"{class_.__name__} is asynchronous: say aclose"
    if "aclose" in closing and not inspect.iscoroutinefunction(getattr(class_, "aclose")):  # noqa: B009
        return f"{class_.__name__} blocks: say close"
    return None


def test_asynchronous_objects_have_aclose_and_blocking_ones_close() -> None:
    classes = public_classes()
    assert [problem for each in classes if (problem := close_problem_of(each)) is not None] == []
    assert sum(hasattr(each, "aclose") for each in classes) >= 4
    assert sum(hasattr(each, "close") for each in classes) >= 3


# Commands, and what they and HTTP print


def commands(group: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields all commands and groups with their complete names."""
    for name, command in getattr(group, "commands", {}).items():
        yield f"{place} {name}", command
        yield from commands(command, f"{place} {name}")


def _all_commands() -> list[tuple[str, Any]]:
    return [*commands(typer.main.get_command(app), "scankv")]


def names_of_command(place: str, command: Any) -> Iterator[PublicName]:
    """Yields the long options of a command. Those with times of settings have the ends of their names."""
    settings = [field.name for field in dataclasses.fields(ServerConfig)]
    for option in command.params:
        for flag in (*option.opts, *option.secondary_opts):
            if flag.startswith("--"):
                name = flag.removeprefix("--").replace("-", "_")
                is_setting = any(setting.endswith(name) for setting in settings)
                yield PublicName("option" if is_setting else "parameter", f"{place} {flag}", name)


def _formats_of(command: Any) -> list[str]:
    (option,) = (each for each in command.params if "--format" in each.opts)
    annotation = get_type_hints(command.callback)[option.name]
    choices = [each for each in (annotation, *get_args(annotation)) if inspect.isclass(each) and issubclass(each, Enum)]
    return [str(each.value) for choice in choices for each in choice]


def command_problem_of(place: str, command: Any) -> str | None:
    """How a command breaks the rules about groups, `--format` and `--json`. None: it keeps them."""
    flags = {flag: option for option in command.params for flag in option.opts}
    if hasattr(command, "commands") and not place.endswith("s"):
        return f"{place}: groups are plural"
    formats = _formats_of(command) if "--format" in flags else []
    if wrong := [word for word in formats if "json" in word and "jsonl" not in word]:
        return f"{place}: --format {wrong[0]} is jsonl"
    if place.removeprefix("scankv ") in ROW_COMMANDS and ("jsonl" not in formats or "--json" in flags):
        return f"{place}: commands that show rows have --format with jsonl, and no --json"
    return None


def test_commands_keep_the_conventions() -> None:
    found = _all_commands()
    assert len(found) > 50
    assert problems_of([name for place, command in found for name in names_of_command(place, command)]) == []
    problems = {place: command_problem_of(place, command) for place, command in found if not is_excepted(place)}
    assert [problem for problem in problems.values() if problem is not None] == []


def keys_of(source: str) -> Iterator[str]:
    """Yields the keys of all dictionaries and of JSON in f-strings that are written down in Python code."""
    for node in ast.walk(ast.parse(source)):
        for text in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(text, ast.Constant):
                yield from re.findall(r'[{,]"(\w+)":', str(text.value).replace(", ", ","))
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier():
                yield key.value


def test_json_of_commands_and_http_keeps_the_conventions() -> None:
    stored = {field.name for config in (ServerConfig, TableOptions) for field in dataclasses.fields(config)}
    # The log is not public.
    files = [*(ROOT / "scankv" / "cli").rglob("*.py"), *(ROOT / "http_gateway").rglob("*.py")]
    names = [
        PublicName("json", f"{path.name}: {key}", key)
        for path in files
        if path.name != "access_log.py"
        for key in keys_of(path.read_text())
        if key not in stored
    ]
    names += [
        PublicName("json", f"{class_.__name__}.{field.name}", field.name)
        for class_ in PRINTED_CLASSES
        for field in dataclasses.fields(class_)
    ]
    assert len(names) > 200
    assert {"top_screen.py: taken_at", "sessions.py", "table_pages.py"} <= {
        part for name in names for part in (name.place, name.place.partition(":")[0])
    }
    assert problems_of(names) == []


def test_parameters_over_http_keep_the_conventions() -> None:
    names = [
        PublicName("http", f"{operation.path}?{parameter.name}", parameter.name)
        for operation in OPERATIONS
        for parameter in operation.parameters
    ]
    assert len(names) > 20
    assert problems_of(names) == []


# Settings, options, metrics


def names_of_settings(config: Any) -> Iterator[PublicName]:
    """Yields the names of settings or table options. Numbers with a fraction are durations, unless their name tells."""
    for field in dataclasses.fields(config):
        is_duration = field.type == "float" and not field.name.endswith(FRACTIONS)
        yield PublicName("duration" if is_duration else "setting", field.name, field.name)


def test_settings_and_table_options_keep_the_conventions() -> None:
    names = [*names_of_settings(ServerConfig), *names_of_settings(TableOptions)]
    assert sum(name.kind == "duration" for name in names) > 20
    assert problems_of(names) == []


def test_options_of_spark_keep_the_conventions() -> None:
    names = {*READ_NAMES, *STREAM_NAMES, *WRITE_NAMES}
    assert problems_of([PublicName("setting", name, name) for name in names]) == []


def test_metrics_keep_the_conventions() -> None:
    metrics = [*SERVER_METRICS, *TABLE_METRICS]
    names = [
        PublicName("duration" if metric.kind == "histogram" else "metric", metric.name, metric.name)
        for metric in metrics
    ]
    names += [PublicName("metric", name, name) for name in STANDARD_METRICS]
    names += [PublicName("metric", f"{metric.name}{{{label}}}", label) for metric in metrics for label in metric.labels]
    assert problems_of(names) == []
    assert [each.name for each in metrics if (each.kind == "counter") is not each.name.endswith("_total")] == []


# The test can fail


class _Wrong:
    """A class with a wrong name in each place."""

    def __init__(self, by: str) -> None:
        """Makes one."""

    def statistics(self) -> None: ...

    def count(self, at: str, wait_seconds: float) -> None: ...

    @property
    def expires(self) -> dt.datetime:
        raise NotImplementedError

    @property
    def taken(self) -> dt.datetime:
        raise NotImplementedError

    @property
    def taken_at(self) -> str:
        raise NotImplementedError

    @property
    def age_millis(self) -> int:
        raise NotImplementedError


class _WrongFormat(StrEnum):
    JSON = "json"


@dataclass
class _WrongStatistics:
    """Wrong names in a dataclass."""

    created_at: float
    seconds: float


def test_wrong_names_in_python_are_found() -> None:
    assert problems_of([*names_of_class(_Wrong), *names_of_class(_WrongStatistics)]) == [
        "_Wrong(by): say order_by, not by",
        "_Wrong.age_millis: say it in seconds, not in millis",
        "_Wrong.count(at): say as_of, or a name that ends in _at, not at",
        "_Wrong.count(wait_seconds): durations are seconds anyway: leave out _seconds",
        "_Wrong.expires: say expires_at, not expires",
        "_Wrong.statistics: say stats, not statistics",
        "_Wrong.taken: a point in time, and nothing else, ends in _at",
        "_Wrong.taken_at: a point in time, and nothing else, ends in _at",
        "_WrongStatistics.created_at: a point in time, and nothing else, ends in _at",
        "_WrongStatistics.seconds: say which duration it is, such as elapsed or age",
        "_WrongStatistics: say stats, not statistics",
    ]


def test_wrong_ways_to_close_are_found() -> None:
    class ClosesTwice:
        async def aclose(self) -> None: ...

        def close(self) -> None: ...

    class AwaitsClose:
        async def close(self) -> None: ...

    class BlocksInAclose:
        def aclose(self) -> None: ...

    assert [close_problem_of(each) for each in (ClosesTwice, AwaitsClose, BlocksInAclose)] == [
        "ClosesTwice has both aclose and close",
        "AwaitsClose is asynchronous: say aclose",
        "BlocksInAclose blocks: say close",
    ]


def test_wrong_commands_are_found() -> None:
    wrong, thing = typer.Typer(), typer.Typer()

    @wrong.command()
    def top(at: str = "", json: bool = False, pause_seconds: float = 0, drain_seconds: float = 0) -> None: ...

    @wrong.command()
    def copy(format_: Annotated[_WrongFormat | None, typer.Option("--format")] = None) -> None: ...

    @thing.command()
    def show(batch_millis: int = 0) -> None: ...

    wrong.add_typer(thing, name="thing")
    found = [*commands(typer.main.get_command(wrong), "scankv")]
    assert problems_of([name for place, command in found for name in names_of_command(place, command)]) == [
        "scankv thing show --batch-millis: say it in seconds, not in millis",
        "scankv top --at: say as_of, or a name that ends in _at, not at",
        "scankv top --pause-seconds: durations are seconds anyway: leave out _seconds",
    ]
    assert [problem for place, command in found if (problem := command_problem_of(place, command)) is not None] == [
        "scankv top: commands that show rows have --format with jsonl, and no --json",
        "scankv copy: --format json is jsonl",
        "scankv thing: groups are plural",
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("json", "ttl_seconds"),
        ("setting", "aggregates"),
        ("method", "server_stats"),
        ("json", "takenAt"),
        ("attribute", "ttl_sec"),
        ("parameter", "wait_s"),
        ("option", "keep_min"),
        ("setting", "batch_millis"),
        ("duration", "batch_delay"),
    ],
)
def test_wrong_names_are_found(kind: str, name: str) -> None:
    assert problem_of(PublicName(kind, name, name)) is not None


def test_keys_of_json_are_found() -> None:
    assert [*keys_of('print(dumps({"ttl_seconds": 1, **x, "the rows": 2} | {"at": {"by": 3}}))')] == [
        "ttl_seconds",
        "at",
        "by",
    ]
    assert [*keys_of("""f'{{"time":{x},"first": {y}}}'""")] == ["time", "first"]
