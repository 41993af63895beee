"""The catalog that names the current version of an Iceberg table: a file beside the table, or one of the user's."""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from scankv.lake.formats import CATALOG_FILE
from scankv.model.errors import LakeConflict, LakeDamaged, LakeUnavailable, UsageError
from scankv.model.shown_uris import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.catalog import Catalog

    from scankv.lake.location import LakeLocation

_LOCAL_NAME: Final = "scankv"
_LOCAL_TABLE: Final = ("scankv", "published")
_LOCK_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A name in a catalog. Immutable.

    Attributes:
        catalog: The name of a catalog in the configuration of pyiceberg. None: the file beside the table.
        identifier: The namespace and the name of the table.
    """

    catalog: str | None
    identifier: tuple[str, ...]

    @contextmanager
    def open(self, location: LakeLocation) -> Iterator[Catalog]:
        """Opens the catalog for the length of the block.

        Raises:
            UsageError: The configuration of pyiceberg does not have the catalog, or a library is missing.
            LakeUnavailable: The catalog does not answer.
        """
        with translate_errors(location), closing(self._open(location)) as catalog:
            yield catalog

    def exists(self, location: LakeLocation) -> bool:
        """Returns whether the catalog exists. That of a table on a local disk does after the first commit."""
        return self.catalog is not None or _file(location).exists()

    def _open(self, location: LakeLocation) -> Catalog:
        if self.catalog is None:
            return _open_file(location)
        from pyiceberg.catalog import load_catalog

        try:
            return load_catalog(self.catalog, **_object_store_properties(location))
        except (ValueError, ImportError) as error:
            raise UsageError(
                f'the catalog "{self.catalog}" cannot be opened ({hide_secrets(str(error))}): name a catalog of '
                f"the file .pyiceberg.yaml or of variables such as PYICEBERG_CATALOG__{self.catalog.upper()}__URI",
                option="catalog",
            ) from None


def catalog_table(text: str | None, location: LakeLocation) -> CatalogTable:
    """Parses the name of a table in a catalog, such as `prod:game.scores`. None: the catalog is beside the table.

    Raises:
        UsageError: The text has another form, or is needed because the location is not a local directory.
    """
    if text is None:
        if location.local is None:
            raise UsageError(
                f"an Iceberg table in {location} needs a catalog: give its name and the name of the table in it, such "
                "as prod:game.scores",
                option="catalog",
            )
        return CatalogTable(None, _LOCAL_TABLE)
    name, _, identifier = text.partition(":")
    parts = tuple(identifier.split("."))
    if not name or len(parts) < 2 or not all(parts):
        raise UsageError(
            "catalog must be the name of a catalog and the name of a table in it, such as prod:game.scores, not "
            f'"{text}"',
            option="catalog",
        )
    return CatalogTable(name, parts)


@contextmanager
def translate_errors(location: LakeLocation) -> Iterator[None]:
    """Raises our errors for those of pyiceberg and of what it uses, without their causes, which may have a password.

    Raises:
        LakeConflict: Another commit came first.
        LakeDamaged: A file of the metadata is missing or damaged.
        LakeUnavailable: The catalog or the location does not answer.
    """
    import pyarrow as pa
    from pydantic import ValidationError
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    conflicts = (
        exceptions.CommitFailedException,
        exceptions.NoSuchTableError,
        exceptions.TableAlreadyExistsError,
        exceptions.ValidationException,
    )
    try:
        yield
    except conflicts as error:
        raise LakeConflict(
            f"another program has committed to the Iceberg table in {location} since the last version was read "
            f"({hide_secrets(str(error))}): nothing was committed; let one program publish each table"
        ) from None
    except (FileNotFoundError, ValidationError, exceptions.ValidationError) as error:
        raise LakeDamaged(
            f"the Iceberg table in {location} cannot be read ({hide_secrets(str(error))}): restore the file, or "
            "remove the table and publish again"
        ) from None
    except (
        OSError,
        pa.ArrowException,
        SQLAlchemyError,
        exceptions.RESTError,
        exceptions.WaitingForLockException,
    ) as error:
        raise LakeUnavailable(
            f"the Iceberg table in {location} cannot be reached ({hide_secrets(str(error))}): see to its space, its "
            "permissions and its catalog, then repeat the command"
        ) from None


def table_root(location: LakeLocation) -> str:
    """Returns the location as Iceberg's metadata has it."""
    return location.root_uri.rstrip("/")


def _file(location: LakeLocation) -> Path:
    assert location.local is not None
    return location.local / CATALOG_FILE


def _open_file(location: LakeLocation) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import IntegrityError, OperationalError

    from scankv.lake.iceberg.durable_files import NAME

    path = _file(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    properties = {
        "uri": f"sqlite:///{quote(str(path))}?timeout={_LOCK_SECONDS}",
        "warehouse": str(path.parent),
        "py-io-impl": NAME,
    }
    try:
        catalog = SqlCatalog(_LOCAL_NAME, **properties)
    except OperationalError:
        # Another publisher has created the tables of the database in the meantime.
        catalog = SqlCatalog(_LOCAL_NAME, **properties)
    # Another publisher may create it in the meantime, too.
    with suppress(IntegrityError):
        catalog.create_namespace_if_not_exists(_LOCAL_TABLE[0])
    return catalog


def _object_store_properties(location: LakeLocation) -> dict[str, str]:
    options = location.object_store_options()
    return {f"s3.{name}": options[name] for name in ("endpoint", "region") if name in options}
