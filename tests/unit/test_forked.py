"""A process forked from the zygote behaves like one that was started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.forked import run_forked
from tests.support.forked_programs import ForkedPrograms

# `python -m timeit` runs a statement that is an argument.
TIMEIT = (sys.executable, "-m", "timeit", "-n1", "-r1")


def test_the_zygote_has_one_thread_and_its_children_the_modules_but_not_pandas() -> None:
    """Another thread would not exist in the children, and might hold a lock."""
    done = run_forked(*TIMEIT, "import sys; print(sorted({*sys.modules} & {'grpc', 'rocksdict', 'pandas'}))")
    assert done.stdout.decode().splitlines()[0] == "['grpc', 'rocksdict']"
    process = forked._zygotes.get("")._process
    assert process is not None
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1


def test_a_program_of_a_shell_has_the_streams_the_directory_and_the_exit_code_of_its_process(tmp_path: Path) -> None:
    with ForkedPrograms() as forked:
        forked.write(tmp_path / "measure", "timeit")
        statement = "import os, sys; print(os.getcwd(), os.environ['HELLO'], sys.stdin.read(), flush=True); os._exit(3)"
        script = f'cd "$0"; echo what | HELLO=hello ./measure -n1 -r1 "{statement}"; echo $?'
        done = subprocess.run(["bash", "-c", script, tmp_path], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{tmp_path} hello what\n\n3\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_ends_its_process(tmp_path: Path, number: signal.Signals) -> None:
    with ForkedPrograms() as forked:
        forked.write(tmp_path / "measure", "timeit")
        statement = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
        command = [str(tmp_path / "measure"), "-n1", "-r1", statement]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            process = os.pidfd_open(int(program.stdout.readline()))
            program.send_signal(number)
            code = program.wait(60)
            assert select.select([process], [], [], 60)[0]
            os.close(process)
    assert code == (1 if number == signal.SIGINT else -number)
