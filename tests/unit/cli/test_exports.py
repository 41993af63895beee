"""Users import `scankv` and its public modules, and see these names in tracebacks, `help()` and pickles."""

from __future__ import annotations

import pickle
import traceback
from types import FunctionType, ModuleType

import pytest

import aio_client
import aio_client.mirror
import aio_client.sync
import aio_client.testing
import scankv
import scankv.mirror
import scankv.spark
import scankv.sync
import scankv.testing
import spark_bridge
from scankv.model import errors


@pytest.mark.parametrize(
    ("public", "origin"),
    [
        (scankv, aio_client),
        (scankv.sync, aio_client.sync),
        (scankv.mirror, aio_client.mirror),
        (scankv.spark, spark_bridge),
    ],
)
def test_a_public_module_has_the_names_of_the_package_behind_it(public: ModuleType, origin: ModuleType) -> None:
    assert public.__all__ == origin.__all__
    assert all(getattr(public, name) is getattr(origin, name) for name in origin.__all__ if name != "sync")


def test_every_error_of_the_tree_is_public() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert tree <= {*scankv.__all__}


def test_the_testing_module_has_the_fakes_and_the_real_server() -> None:
    assert set(scankv.testing.__all__) == {*aio_client.testing.__all__, "ServerProcess"}


@pytest.mark.parametrize("public", [scankv, scankv.sync, scankv.mirror, scankv.spark, scankv.testing])
def test_public_classes_and_functions_name_the_public_module(public: ModuleType) -> None:
    members = {name: getattr(public, name) for name in public.__all__}
    named = {name: member for name, member in members.items() if isinstance(member, type | FunctionType)}
    assert named
    assert {name: member.__module__ for name, member in named.items() if member.__module__ != public.__name__} == {}
    assert all(pickle.loads(pickle.dumps(member)) is member for member in named.values())


def test_an_error_shows_its_public_name_in_a_traceback() -> None:
    error = scankv.TableNotFound("no table t")
    assert traceback.format_exception_only(error) == ["scankv.TableNotFound: no table t\n"]
