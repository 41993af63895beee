"""How `--help` looks: plain text that fits 80 columns, with commands, and the options of long commands, in sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import typer

START_HERE: Final = """\
scankv serve --data data                                  # start a server
scankv load game.scores scores.csv --create --key player  # make a table
scankv tables                                             # list tables
scankv describe game.scores                               # show its columns
scankv scan game.scores --where "score > 10" --limit 5    # read rows
scankv get game.scores ann                                # read one row
scankv put game.scores player=ann score=12                # write a row
scankv delete game.scores ann                             # delete a row
scankv tail game.scores                                   # follow changes
scankv load --help                                        # learn the options
"""
"""The lines from which a new user starts."""

OPTION_SECTIONS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "load": {
        "The file": ("format_", "null", "delimiter", "on_error", "rejected"),
        "The table": ("mode", "track_changes"),
        "A new table": ("create", "key", "no_key", "buckets", "set_", "ignore_definition"),
        "A new table from large files": ("bootstrap", "tablets", "duplicates", "from_scratch"),
    },
    "serve": {
        "The server": ("data", "workers", "config", "set_", "print_config"),
        "Connections": ("host", "port", "insecure", "tokens", "tls_certificate", "tls_key", "tls_client_ca"),
        "Monitoring": ("metrics_port", "metrics_host", "log_format", "log_level", "audit_log"),
        "HTTP gateway": ("http_port", "http_host", "http_origin", "http_access_log"),
        "Backups": ("backup_location", "backup_every"),
    },
}
"""The parameters of a command by section. The others are options without a section."""

_FIRST_COLUMN: Final = 24


class Command(TyperCommand):
    """A command whose options are in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401  # typer has moved the class of its contexts
        """Returns the words of the usage. Typer's own have braces around arguments."""
        return ["[OPTIONS]", *map(_metavar, _arguments_of(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Writes the arguments, the sections, and the options without a section."""
        write_options(self, ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands whose list of commands is not truncated."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Writes the commands before the options, because nearly all groups have the same options."""
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        write_sections(formatter, {"Commands": [(name, _first_sentence(each.help)) for name, each in commands]})
        write_options(self, ctx, formatter)


def in_plain_text(group: typer.Typer) -> typer.Typer:
    """Gives a group and its commands the layout of this module, and returns the group."""
    # The layout of rich has five columns, which leave little width for the text on a terminal of 80 columns.
    group.rich_markup_mode = None
    group.info.cls = CommandGroup
    for each in group.registered_commands:
        each.cls = Command
    return group


def write_start(formatter: Any) -> None:  # noqa: ANN401
    """Writes the lines to start from."""
    with formatter.section("Start here"):
        for line in START_HERE.splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:  # noqa: ANN401
    """Writes sections of names with texts, with all texts in one column. Leaves out empty sections."""
    names = [name for records in sections.values() for name, _ in records if len(name) <= _FIRST_COLUMN]
    width = max(map(len, names), default=0)
    for section, records in sections.items():
        if records:
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), text) for name, text in records], col_max=width)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
    """Writes the arguments, the sections of options, and the other options."""
    records = {each.name: each.get_help_record(ctx) for each in command.get_params(ctx)}
    # Typer adds a type that says nothing, as in `TABLE <str>`.
    arguments = [(_metavar(each), records.pop(each.name)[1]) for each in _arguments_of(command)]
    sections = OPTION_SECTIONS.get(command.name or "", {})
    own = {section: [records.pop(name) for name in names] for section, names in sections.items()}
    write_sections(formatter, {"Arguments": arguments, **own, "Options": list(filter(None, records.values()))})


def _arguments_of(command: Any) -> list[Any]:  # noqa: ANN401
    return [each for each in command.params if each.param_type_name == "argument"]


def _metavar(argument: Any) -> str:  # noqa: ANN401
    text = argument.metavar or argument.name.upper()
    if argument.nargs != 1 and "..." not in text:
        text += "..."
    return text if argument.required or text.startswith("[") else f"[{text}]"


def _first_sentence(text: str) -> str:
    return text.split("\n\n")[0].split(". ")[0].rstrip(".")
