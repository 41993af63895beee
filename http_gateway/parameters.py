"""The parameters of requests: declared once, then read, checked, and described by OpenAPI.

Rule: a request with a parameter that its path does not have is refused, and so is one that gives a parameter twice,
unless it may be repeated. So a mistyped `where` is an error, and not silently ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from http_gateway.limits import MAX_TEXT
from http_gateway.problems import bad_request

if TYPE_CHECKING:
    from collections.abc import Sequence

Values: TypeAlias = "dict[str, Any]"
"""The values of all parameters of a path, with defaults."""

_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the query. By itself, it takes text.

    Attributes:
        name: Its name.
        meaning: What it says, for the description.
        required: Whether it must be given.
        default: Its value if it is not given.
        example: A value that makes sense for a table of players and scores.
    """

    name: str
    meaning: str
    required: bool = False
    default: Any = None
    example: Any = None

    @property
    def schema(self) -> dict[str, Any]:
        """What the values are, as a JSON schema."""
        return {"type": "string", "maxLength": MAX_TEXT}

    def read(self, texts: Sequence[str]) -> Any:  # noqa: ANN401
        """Returns the value of what was given. Raises HttpRefusal if it is not allowed."""
        if len(texts) > 1:
            raise bad_request(f"{self.name} is given {len(texts)} times: give it once")
        if len(texts[0]) > MAX_TEXT:
            raise bad_request(f"{self.name} has {len(texts[0]):,} characters: at most {MAX_TEXT:,} are allowed")
        return self.convert(texts[0])

    def convert(self, text: str) -> Any:  # noqa: ANN401
        """Returns the value of one text. Raises HttpRefusal if it is not allowed."""
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumber(Parameter):
    """A parameter that takes whole numbers from `low` to `high`."""

    low: int
    high: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high} | _default_of(self)

    def convert(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and self.low <= int(text) <= self.high):
            raise bad_request(
                f"{self.name} must be a whole number from {self.low:,} to {self.high:,}, not {text!r:.40}"
            )
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds(Parameter):
    """A parameter that takes a number of seconds from `low` to `high`."""

    low: float
    high: float

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.low, "maximum": self.high} | _default_of(self)

    def convert(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not self.low <= value <= self.high:
            raise bad_request(
                f"{self.name} must be a number of seconds from {self.low:g} to {self.high:g}, not {text!r:.40}"
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Parameter):
    """A parameter that takes one of some words."""

    words: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)} | _default_of(self)

    def convert(self, text: str) -> str:
        if text not in self.words:
            raise bad_request(f"{self.name} must be {' or '.join(self.words)}, not {text!r:.40}")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth(Parameter):
    """A parameter that takes `true` or `false`."""

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"} | _default_of(self)

    def convert(self, text: str) -> bool:
        if text not in _TRUTH:
            raise bad_request(f"{self.name} must be true or false, not {text!r:.40}")
        return _TRUTH[text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names(Parameter):
    """A parameter that takes names with commas between them."""

    def convert(self, text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            raise bad_request(f"{self.name} must be names with commas between them, not {text!r:.80}")
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Parameter):
    """A parameter that may be given up to `most` times, and takes text."""

    most: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "maxLength": MAX_TEXT}, "maxItems": self.most}

    def read(self, texts: Sequence[str]) -> list[str]:
        if len(texts) > self.most:
            raise bad_request(f"{self.name} is given {len(texts):,} times: at most {self.most:,} are allowed")
        if any(len(text) > MAX_TEXT for text in texts):
            raise bad_request(f"{self.name} may have at most {MAX_TEXT:,} characters each time")
        return list(texts)


def read_parameters(declared: Sequence[Parameter], given: Sequence[tuple[str, str]]) -> Values:
    """Returns the values of all declared parameters.

    Args:
        declared: The parameters that the path has.
        given: Names and values as they stand in the query, in order.

    Raises:
        HttpRefusal: A parameter is unknown, missing, repeated, or has a value that is not allowed.
    """
    texts: dict[str, list[str]] = {}
    for name, text in given:
        texts.setdefault(name, []).append(text)
    known = {parameter.name for parameter in declared}
    if unknown := [name for name in texts if name not in known]:
        allowed = f"the parameters here are {', '.join(sorted(known))}" if known else "this path has no parameters"
        raise bad_request(f'there is no parameter "{unknown[0]:.80}": {allowed}')
    missing = [parameter for parameter in declared if parameter.required and parameter.name not in texts]
    if missing:
        raise bad_request(f"{missing[0].name} is missing: {missing[0].meaning}")
    return {each.name: each.read(texts[each.name]) if each.name in texts else each.default for each in declared}


def _default_of(parameter: Parameter) -> dict[str, Any]:
    return {} if parameter.default is None else {"default": parameter.default}
