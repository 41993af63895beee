"""The reference has every public name, and says of every error what to do."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes
from typer.testing import CliRunner

import scankv
from aio_client._integrations.pandas_frames import frame_of
from scankv.cli.app import app
from scankv.model import errors
from scankv.model.tables.options import TableOptions
from tests.support.type_samples import NOT_STORABLE, OTHER_LAYOUTS, type_id_names

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "python"
LISTED = re.compile(r"<!-- generated: python (\S+)\s(.*?)-->", re.DOTALL)


@pytest.mark.parametrize("module", ["scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing"])
def test_every_public_name_is_on_one_page(module: str) -> None:
    pages = [LISTED.findall(page.read_text()) for page in sorted(PAGES.glob("*.md"))]
    listed = [name for page in pages for of, names in page for name in names.split() if of == module]
    public = import_module(module)
    # Exceptions have a page of their own, generated from the tree.
    expected = {
        name for name in public.__all__ if name != "sync" and getattr(errors, name, None) is not getattr(public, name)
    }
    assert sorted(listed) == sorted(expected)


def _subclasses(cls: type[errors.ScanKvError]) -> list[type[errors.ScanKvError]]:
    return [each for sub in cls.__subclasses__() for each in (sub, *_subclasses(sub))]


def test_every_error_says_what_to_do() -> None:
    families = {errors.ServerRefused, errors.ConnectionFailed}
    silent = [
        cls.__name__
        for cls in _subclasses(errors.ScanKvError)
        if cls.__module__ in {"scankv", errors.__name__}
        and cls not in families
        and "\n    What to do:\n        " not in (cls.__doc__ or "")
    ]
    assert silent == []


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PAGES.parents[1] / "_ext"))
    return import_module("reference")


def _ids_missing_in(types: list[pa.DataType]) -> set[str]:
    return set(type_id_names().values()) - {type_id_names()[type_.id] for type_ in types}


def test_every_type_of_arrow_is_on_the_page_of_types(generators: Any) -> None:
    page = generators.column_types
    # What pyarrow has no public name for: unions have two modes, and intervals one of three that Python can make.
    unnamed = {"INTERVAL_DAY_TIME", "INTERVAL_MONTHS", "EXTENSION"}
    assert _ids_missing_in([*page.TYPES, *page.OTHERS]) <= unnamed
    assert _ids_missing_in(page.OTHERS) & (NOT_STORABLE | OTHER_LAYOUTS) <= unnamed
    assert _ids_missing_in([type_ for type_ in page.TYPES if str(type_) != "bool"]) >= {"BOOL"}


def test_the_page_of_types_says_what_other_systems_refuse(generators: Any) -> None:
    text = generators.column_types.describe_types()
    rows = {line.split(" | ")[0].strip("| `"): line for line in text.partition("## In other systems")[2].splitlines()}
    assert "refused" in rows["time64[us]"]
    assert "refused" not in rows["int64"]
    assert "| `duration[s]` | refused: use int64" in text


def test_every_table_option_has_its_values_and_says_whether_it_can_change(generators: Any) -> None:
    text = generators.table_options.describe_table_options()
    names = [field.name for field in fields(TableOptions)]
    assert [name for name in names if f"### `{name}`" not in text] == []
    assert "| [`compression`](#compression) | `none`, `lz4`, `zstd` | `lz4` | no |" in text
    assert "| [`columnar_base`](#columnar_base) | `off`, `auto`, `eager` | `auto` | yes |" in text


def test_the_summary_of_a_class_comes_first_with_what_people_use_first(generators: Any) -> None:
    for module in ("scankv", "scankv.sync"):
        text = generators.python_api.describe_class(module, "Table")
        order = [text.index(part) for part in ("list-table", f"{module}.Table.get`", f"{module}.Table.upsert`")]
        order += [
            text.index(part) for part in (f"{module}.Table.scan`", "## Description", f"automethod:: {module}.Table.get")
        ]
        assert order == sorted(order)
        assert text.index(f"automethod:: {module}.Table.get") < text.index(
            f"automethod:: {module}.Table.adopt_snapshot"
        )


@pytest.mark.parametrize("module", ["scankv", "scankv.sync"])
def test_every_member_of_a_class_is_in_its_summary_and_described_once(generators: Any, module: str) -> None:
    for name in ("Table", "Client", "Scan", "Transaction", "Writer", "StartFrom"):
        cls = getattr(import_module(module), name, None)
        text = generators.python_api.describe_class(module, name) if cls else ""
        members = [each for each, value in inspect.getmembers(cls, callable) if not each.startswith("_")] if cls else []
        undescribed = [
            each
            for each in members
            if text.count(f"`~{module}.{name}.{each}`") != 1
            or len(re.findall(rf":: {module}.{name}.{each}$", text, re.M)) != 1
        ]
        assert undescribed == []


def test_the_members_that_the_reference_shows_first_exist(generators: Any) -> None:
    groups = generators.python_api.GROUPS
    modules = [import_module(module) for module in ("scankv", "scankv.sync")]
    missing = [
        f"{name}.{member}"
        for name, of_class in groups.items()
        for member in " ".join(of_class.values()).split()
        if not any(hasattr(getattr(module, name), member) for module in modules)
    ]
    assert missing == []


def test_every_class_and_every_command_has_a_page(generators: Any, tmp_path: Path) -> None:
    copytree(PAGES, tmp_path / "reference" / "python", ignore=ignore_patterns("scankv.*"))
    old = tmp_path / "reference" / "python" / "scankv.Gone.md"
    old.write_text("of an earlier build")
    generators.write_pages(SimpleNamespace(srcdir=tmp_path))
    assert not old.exists()
    written = {path.relative_to(tmp_path / "reference").as_posix() for path in tmp_path.rglob("*.md")}
    classes = {f"python/scankv.{name}.md" for name in scankv.__all__ if isinstance(getattr(scankv, name), type)}
    raised = {f"python/scankv.{name}.md" for name in vars(errors)}
    assert classes - raised <= written
    commands = generators.command_line.list_commands()
    assert {f"command-line/{name}.md" for name in commands} <= written
    listed = generators.command_line.describe_commands()
    for name in commands:
        assert f"(command-line/{name}.md)" in listed
        assert f"$ scankv {name}" in generators.command_line.describe_command(name)


def test_a_group_of_commands_begins_with_a_table_of_them(generators: Any) -> None:
    text = generators.command_line.describe_command("indexes")
    assert "; with `--where`, only those that match" in generators.command_line.describe_command("replace")
    summary = "| [`scankv indexes add`](#scankv-indexes-add) | Add an index"
    assert text.index(summary) < text.index("## `scankv indexes add`")


def test_pages_of_many_errors_settings_and_calls_begin_with_a_table(generators: Any) -> None:
    texts = (
        generators.errors.describe_errors(),
        generators.settings.describe_settings(),
        generators.wire.describe_file("lookup"),
    )
    rows = ("| [`TableNotFound`](#tablenotfound) |", "| [`data`](#data) | required |", "| [Lookup](#lookup) | Reads")
    sections = ("## `TableNotFound`", "### `data`", "### Lookup")
    for text, row, section in zip(texts, rows, sections, strict=True):
        assert text.index(row) < text.index(section)


def test_the_help_of_create_and_of_create_table_lead_to_types_and_options() -> None:
    shown = "".join(CliRunner().invoke(app, ["create", "--help"]).output.split())
    assert '"Columntypes"' in shown
    assert '"Tableoptions"' in shown
    for client in (scankv.Client, scankv.sync.Client):
        said = " ".join((client.create_table.__doc__ or "").split())
        assert '"Column types"' in said
        assert '"Table options"' in said


def test_every_method_of_a_class_with_groups_stands_in_one(generators: Any) -> None:
    for module in ("scankv", "scankv.sync"):
        for name in generators.python_api.GROUPS:
            assert "## Methods" not in generators.python_api.describe_class(module, name), f"{module}.{name}"


def test_pages_of_classes_and_commands_are_in_the_sidebar(generators: Any) -> None:
    tables = generators.python_api.describe_names("scankv", "Table", "connect")
    assert "```{toctree}\n:hidden:\n\nTable <scankv.Table>\n```" in tables
    commands = generators.command_line.describe_commands()
    for name in generators.command_line.list_commands():
        assert f"\nscankv {name} <command-line/{name}>\n" in commands


def _long_method() -> addnodes.desc:
    arguments = nodes.field("", nodes.field_name("", "Raises"), nodes.field_body("", nodes.paragraph("", "E. " * 200)))
    content = addnodes.desc_content(
        "",
        *(nodes.paragraph("", "Does it."), nodes.literal_block("", "do()"), nodes.paragraph("", "In detail.")),
        nodes.field_list("", arguments),
    )
    return addnodes.desc("", addnodes.desc_signature("", "do()"), content, objtype="method")


def test_long_descriptions_are_folded_after_the_example_where_a_class_has_many_methods(generators: Any) -> None:
    few, many = new_document("few"), new_document("many")
    few += [_long_method() for _ in range(3)]
    many += [_long_method() for _ in range(12)]
    for page in (few, many):
        generators.folds.fold_methods(page)
    assert list(few.findall(nodes.raw)) == []
    content = next(many.findall(addnodes.desc_content))
    assert [type(each).__name__ for each in content.children] == [
        *("paragraph", "literal_block", "raw", "paragraph", "field_list", "raw"),
    ]
    assert content[2].astext() == '<details class="member"><summary>Details, errors</summary>'
    text = "".join(each.astext() for each in content.children)
    assert text.count("<details") == text.count("</details>") == 1


def test_pandas_has_the_types_of_arrow_as_the_page_of_types_says(generators: Any) -> None:
    for type_ in generators.column_types.TYPES:
        rows = pa.table({"c": pa.nulls(1, type_)})
        assert str(frame_of(rows, "pyarrow").dtypes["c"]) == f"{type_}[pyarrow]"
