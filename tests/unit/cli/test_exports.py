from __future__ import annotations

import aio_client
import aio_client.sync
import scankv
import scankv.sync


def test_scankv_has_the_names_of_the_client() -> None:
    assert scankv.__all__ == aio_client.__all__
    assert all(getattr(scankv, name) is getattr(aio_client, name) for name in aio_client.__all__ if name != "sync")


def test_scankv_sync_has_the_names_of_the_blocking_client() -> None:
    assert scankv.sync.__all__ == aio_client.sync.__all__
    assert all(getattr(scankv.sync, name) is getattr(aio_client.sync, name) for name in aio_client.sync.__all__)
