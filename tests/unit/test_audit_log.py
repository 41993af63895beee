"""The file of the audit log: order, rotation, full disks, and what is lost."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import UsageError
from streaming_server.access.audit_log import AuditLog
from streaming_server.access.audit_outputs import AuditFile, AuditStream, AuditSyslog, parse_audit_output
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_767_323_045_678_000_000


def open_log(path: Path, **options: Any) -> AuditLog:
    return AuditLog(AuditFile(path), lambda: NOW, **options)


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def numbers_of(path: Path) -> list[int]:
    return [line["n"] for line in lines_of(path)]


def test_lines_are_appended_in_order_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for beginning in (0, 3000):
        with closing(open_log(path)) as log:
            for number in range(beginning, beginning + 3000):
                log.add({"n": number, "text": "Grüße\n"})
        assert (log.lines_written, log.lines_lost) == (3000, 0)
    assert numbers_of(path) == list(range(6000))
    assert lines_of(path)[0] == {"time": "2026-01-02T03:04:05.678Z", "n": 0, "text": "Grüße\n"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_is_in_the_file_soon_after_it_was_added(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with closing(open_log(path)) as log:
        log.add({"n": 0})
        wait_until(lambda: numbers_of(path) == [0], "written")


@pytest.mark.parametrize("removed", [False, True])
def test_lines_after_a_rotation_are_in_a_new_file(tmp_path: Path, removed: bool) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    with closing(open_log(path)) as log:
        log.add({"n": 0})
        wait_until(lambda: log.lines_written == 1, "written")
        path.rename(old)
        if removed:
            old.unlink()
        log.add({"n": 1})
        wait_until(lambda: log.lines_written == 2, "written")
        assert numbers_of(path) == [1]
    if not removed:
        assert numbers_of(old) == [0]


def test_lines_after_a_truncation_begin_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with closing(open_log(path)) as log:
        log.add({"n": 0})
        wait_until(lambda: log.lines_written == 1, "written")
        os.truncate(path, 0)
        log.add({"n": 1})
    assert numbers_of(path) == [1]


@pytest.mark.parametrize("rotated", [False, True])
def test_lines_wait_for_a_full_disk_and_those_beyond_the_limit_are_counted(
    tmp_path: Path, rotated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        path = disk.path / "audit.log"
        with closing(open_log(path, max_waiting_lines=1500)) as log:
            with disk.full():
                # More than the page of the file that is left, so that a line is cut off.
                for number in range(200):
                    log.add({"n": number, "text": "x" * 50})
                wait_until(lambda: "cannot be written: No space left" in caplog.text, "reported")
                for number in range(200, 3000):
                    log.add({"n": number, "text": "x" * 50})
                lost = log.lines_lost
                assert 1000 <= lost <= 1500
                if rotated:
                    path.rename(disk.path / "audit.log.1")
            wait_until(lambda: "can be written again" in caplog.text, "recovered")
            # Until then, a further line may be lost, too.
            wait_until(lambda: log.lines_written >= 3000 - lost, "the lines that waited written")
            log.add({"n": -1})
        found = lines_of(path)
        assert {"time": found[0]["time"], "event": "lines_lost", "lines": lost} in found
        numbers = [line["n"] for line in found if "n" in line]
        assert numbers[-1] == -1
        if rotated:
            # The old file ends with a part of a line, which the new file has in full.
            earlier = (disk.path / "audit.log.1").read_text().split("\n")[:-1]
            numbers = [json.loads(line)["n"] for line in earlier] + numbers
        assert numbers[:-1] == list(range(3000 - lost))
    assert caplog.text.count("cannot be written") == 1


def test_closing_does_not_wait_for_a_full_disk_for_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        log = open_log(disk.path / "audit.log")
        with disk.full():
            for number in range(200):
                log.add({"n": number, "text": "x" * 50})
            log.close()
        assert "lines of the audit log" in caplog.text
        assert "are lost, because it could not be written" in caplog.text


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, problem in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "audit.log", "No such file or directory"),
        (tmp_path / "pipe", "cannot be opened"),
    ):
        with pytest.raises(UsageError, match=problem) as caught:
            open_log(path)
        assert caught.value.details["option"] == "audit_log"


def test_lines_on_a_stream_are_complete_and_in_order() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb") as writer:
        with closing(AuditLog(AuditStream(writer.fileno()), lambda: NOW)) as log:
            for number in range(3):
                log.add({"n": number})
            assert [json.loads(reader.readline())["n"] for _ in range(3)] == [0, 1, 2]
        os.write(writing, b"still open")


def test_lines_on_a_stream_are_short_enough_not_to_mix_with_those_of_other_processes() -> None:
    reading, writing = os.pipe()
    entry: dict[str, Any] = {
        "principal": "p" * 5000,
        "peer": None,
        "tables": [f"d.{number}" + "\x01" * 200 for number in range(50)],
        "resources": dict.fromkeys(("snapshot", "lock", "scan", "consumer", "writer", "options"), "€" * 200),
        "request_bytes": 7,
        "error": "\U0001f600" * 300,
    }
    with open(reading, "rb") as reader, open(writing, "wb") as writer:
        with closing(AuditLog(AuditStream(writer.fileno()), lambda: NOW)) as log:
            for each in (entry, {"tables": entry["tables"]}, {"n": 1}):
                log.add(each)
            lines = [reader.readline() for _ in range(3)]
    assert max(map(len, lines)) <= select.PIPE_BUF
    assert [json.loads(line).get("shortened", False) for line in lines] == [True, True, False]
    cut = json.loads(lines[0])
    assert cut.keys() == {"time", *entry, "shortened"}
    assert cut["resources"].keys() == entry["resources"].keys()
    assert (cut["principal"][:10], cut["peer"], cut["request_bytes"]) == ("p" * 10, None, 7)


def test_lines_in_a_file_are_complete_whatever_their_length(tmp_path: Path) -> None:
    with closing(open_log(tmp_path / "audit.log")) as log:
        log.add({"n": 1, "text": "x" * 100_000})
    assert [len(line["text"]) for line in lines_of(tmp_path / "audit.log")] == [100_000]


def test_lines_in_syslog_are_datagrams_and_are_sent_again_when_syslog_is_back(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def listen() -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(str(path))
        listening.settimeout(30)
        return listening

    with closing(AuditLog(AuditSyslog(str(path)), lambda: NOW)) as log:
        with listen() as syslog:
            log.add({"n": 0})
            head, _, line = syslog.recv(1000).partition(b": ")
            assert head == f"<86>scankv[{os.getpid()}]".encode()
            assert json.loads(line)["n"] == 0
        path.unlink()
        log.add({"n": 1})
        wait_until(lambda: log._failing, "the log has noticed that syslog is away")
        with listen() as syslog:
            assert json.loads(syslog.recv(1000).partition(b": ")[2])["n"] == 1


def test_lines_are_sent_to_syslog_over_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(30)
        address = parse_audit_output(f"syslog:127.0.0.1:{syslog.getsockname()[1]}")
        assert address is not None
        with closing(AuditLog(AuditSyslog(address), lambda: NOW)) as log:
            log.add({"n": 0})
            assert json.loads(syslog.recv(1000).partition(b": ")[2])["n"] == 0


def test_outputs_of_another_form_are_refused() -> None:
    assert parse_audit_output("stdout") is None
    assert parse_audit_output("syslog") == "/dev/log"
    assert parse_audit_output("syslog:/run/log") == "/run/log"
    assert parse_audit_output("syslog:[::1]:514") == ("::1", 514)
    for text in ("stderr", "syslog:", "syslog:host", "syslog:host:0", "syslog:host:70000", "file:/x"):
        with pytest.raises(UsageError, match=f'must be "stdout", "syslog", .*, not "{text}"'):
            parse_audit_output(text)
