"""Errors of content that makes no sense."""

from __future__ import annotations

import pytest

from scankv.model.errors import DataLoss, DiskFull
from streaming_server.storage.backup.stored_fields import translate_unusable


def test_what_makes_no_sense_leaves_its_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLoss, match=r"^the backup b cannot be used, .* \(KeyError: 'a'\)$"):
        with translate_unusable("the backup b"):
            raise KeyError("a")
    (record,) = caplog.records
    assert record.getMessage() == "the backup b cannot be used: KeyError: 'a'"
    assert record.exc_info is not None
    assert record.exc_info[2] is not None


def test_errors_that_say_what_is_wrong_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DiskFull), translate_unusable("the backup b"):
        raise DiskFull("the disk is full")
    assert not caplog.records
