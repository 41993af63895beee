"""Base of small immutable objects inside a configuration."""

from __future__ import annotations

from typing import Any, Self


class Immutable:
    """Compared, hashed and copied by its attributes. `__slots__` names them, and `_set` sets them once.

    Not a dataclass: `dataclasses.asdict` would take it apart within its configuration, and show a secret in it.
    """

    __slots__: tuple[str, ...] = ()

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed; make another one")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Immutable) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
