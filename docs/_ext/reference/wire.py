"""The wire protocol: services, messages and enums of a `.proto` file, with their comments."""

from __future__ import annotations

import re
import tempfile
import textwrap
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

from .sentences import first_sentence
from .summary_tables import summary_table

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOS = Path(__file__).parents[3] / "protos"
# Field numbers in descriptor.proto, which make up the paths of comments.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
FIELDS, NESTED, NESTED_ENUMS, ONEOFS = 2, 3, 4, 8
VALUES, METHODS, SYNTAX = 2, 2, 12
CommentPath = tuple[int, ...]


@cache
def read_files() -> dict[str, FileDescriptorProto]:
    """Returns all files of the protocol by name, compiled with their comments."""
    names = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "descriptors"
        include = str(files("grpc_tools") / "_proto")
        arguments = ["", f"-I{PROTOS}", f"-I{include}", f"--descriptor_set_out={out}", "--include_source_info", *names]
        if protoc.main(arguments):
            raise RuntimeError("protoc cannot compile the protocol")
        return {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}


def describe_file(name: str) -> str:
    """Describes a file of the protocol, given by its short name, such as `scan`."""
    return "\n".join(_FilePage(read_files()[f"scankv/v1/{name}.proto"]).describe())


class _FilePage:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(place.path): _format(place.leading_comments or place.trailing_comments)
            for place in file.source_code_info.location
        }
        self._about = next(
            (
                _format("\n".join(place.leading_detached_comments) or place.leading_comments)
                for place in file.source_code_info.location
                if tuple(place.path) == (SYNTAX,)
            ),
            "",
        )

    def describe(self) -> Iterator[str]:
        yield f"{self._about}\n"
        yield from self._summarize_calls()
        for number, service in enumerate(self._file.service):
            yield from self._describe_service(service, (SERVICES, number))
        for number, message in enumerate(self._file.message_type):
            yield from self._describe_message(message, (MESSAGES, number), "")
        for number, enum in enumerate(self._file.enum_type):
            yield from self._describe_enum(enum, (ENUMS, number), "")

    def _summarize_calls(self) -> Iterator[str]:
        calls = [
            (method.name, self._comment((SERVICES, number, METHODS, each)))
            for number, service in enumerate(self._file.service)
            for each, method in enumerate(service.method)
        ]
        if calls:
            rows = [(f"[{name}](#{name.lower()})", first_sentence(text)) for name, text in calls]
            yield summary_table("call | what it does", rows)

    def _describe_service(self, service: ServiceDescriptorProto, path: CommentPath) -> Iterator[str]:
        yield f"## service {service.name}\n\n{self._comment(path)}\n"
        for number, method in enumerate(service.method):
            request = f"{'stream ' if method.client_streaming else ''}{_short(method.input_type)}"
            response = f"{'stream ' if method.server_streaming else ''}{_short(method.output_type)}"
            yield f"### {method.name}\n\n`rpc {method.name}({request}) returns ({response})`\n"
            yield f"{self._comment((*path, METHODS, number))}\n"

    def _describe_message(self, message: DescriptorProto, path: CommentPath, prefix: str) -> Iterator[str]:
        if message.options.map_entry:
            return
        name = f"{prefix}{message.name}"
        yield f"## message {name}\n\n{self._comment(path)}\n"
        maps = {f"{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
        for number, field in enumerate(message.field):
            yield from self._describe_field(message, field, maps, (*path, FIELDS, number), path)
        for number, nested in enumerate(message.nested_type):
            yield from self._describe_message(nested, (*path, NESTED, number), f"{name}.")
        for number, enum in enumerate(message.enum_type):
            yield from self._describe_enum(enum, (*path, NESTED_ENUMS, number), f"{name}.")

    def _describe_field(
        self,
        message: DescriptorProto,
        field: FieldDescriptorProto,
        maps: dict[str, DescriptorProto],
        path: CommentPath,
        message_path: CommentPath,
    ) -> Iterator[str]:
        one_of = ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            choice = message.oneof_decl[field.oneof_index].name
            if next(each.number for each in message.field if _is_of(each, field.oneof_index)) == field.number:
                yield f"**One of `{choice}`.** {self._comment((*message_path, ONEOFS, field.oneof_index))}\n"
            one_of = f", one of `{choice}`"
        comment = self._comment(path) or "—"
        yield f"`{field.name}` = {field.number} · `{_kind(field, maps)}`{one_of}\n"
        yield f": {textwrap.indent(comment, '  ').lstrip()}\n"

    def _describe_enum(self, enum: EnumDescriptorProto, path: CommentPath, prefix: str) -> Iterator[str]:
        yield f"## enum {prefix}{enum.name}\n\n{self._comment(path)}\n"
        for number, value in enumerate(enum.value):
            comment = " ".join(self._comment((*path, VALUES, number)).split())
            yield f"- `{value.name}` = {value.number}" + (f": {comment}" if comment else "") + "\n"

    def _comment(self, path: CommentPath) -> str:
        return self._comments.get(path, "")


def _format(comment: str) -> str:
    """Returns a comment as Markdown, without the leading space of each line and with lists separated from text."""
    lines: list[str] = []
    for line in comment.splitlines():
        text = line.removeprefix(" ")
        if re.match(r" *\* ", text):
            text = text.lstrip()
            if lines and lines[-1] and not re.match(r"[* ]", lines[-1]):
                lines.append("")
        elif text.startswith("    ") and lines and lines[-1].startswith(("* ", "  ")):
            text = f"  {text.strip()}"
        lines.append(text.replace("<", "&lt;"))
    return "\n".join(lines).strip()


def _is_of(field: FieldDescriptorProto, one_of: int) -> bool:
    return field.HasField("oneof_index") and field.oneof_index == one_of


def _short(name: str) -> str:
    return name.removeprefix(".scankv.v1.").removeprefix(".")


def _kind(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    name = _short(field.type_name) or scalar
    entry = maps.get(name.rpartition(".")[2])
    if entry is not None:
        key, value = (_kind(each, {}) for each in entry.field)
        return f"map<{key}, {value}>"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name
