"""Checks that the subjects of commits follow CONTRIBUTING.md, for all commits since this check was introduced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SINCE = "e878e3f2e419"
"""The last commit before this check was introduced."""
MAX_CHARACTERS = 72
# Merges are exempt: git words their subjects.
SUBJECT = re.compile(r"[A-Z0-9].*[^.\s]")


def problems_of(subject: str) -> list[str]:
    """Returns what is wrong with a subject, one sentence for each problem."""
    problems = []
    if len(subject) > MAX_CHARACTERS:
        problems.append(f"has {len(subject)} characters; the limit is {MAX_CHARACTERS}")
    if not SUBJECT.fullmatch(subject):
        problems.append("must begin with a capital letter and end without a full stop")
    return problems


def main() -> None:
    """Checks the commits. Exits with code 1 and a list of the commits that break the rule."""
    if run("git", "cat-file", "-e", f"{SINCE}^{{commit}}").returncode:
        print(f"commit subjects are not checked, since this clone has no commit {SINCE}")
        return
    log = run("git", "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD").stdout.splitlines()
    found = [(line, problems) for line in log if (problems := problems_of(line.partition(" ")[2]))]
    if found:
        sys.exit("\n".join(f"commit {line}: the subject {'; '.join(problems)}" for line, problems in found))
    print(f"{len(log)} commit subjects follow CONTRIBUTING.md")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the checkout."""
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)


if __name__ == "__main__":
    main()
