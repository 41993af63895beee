"""Are the subjects of commits as CONTRIBUTING.md demands? Looks at all since the rule was checked first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SINCE = "e878e3f2e419"
"""The last commit that was not checked."""
MAX_CHARACTERS = 72
# `Merge branch 'x'` is git's own.
SUBJECT = re.compile(r"[A-Z0-9].*[^.\s]")


def problems_of(subject: str) -> list[str]:
    """What is wrong with a subject, in words."""
    problems = []
    if len(subject) > MAX_CHARACTERS:
        problems.append(f"has {len(subject)} characters: at most {MAX_CHARACTERS}")
    if not SUBJECT.fullmatch(subject):
        problems.append("must begin with a capital letter and end without a full stop")
    return problems


def main() -> None:
    """Checks the commits; exits non-zero with those that break the rule."""
    if run("git", "cat-file", "-e", f"{SINCE}^{{commit}}").returncode:
        print(f"commit subjects are not checked: this clone has no commit {SINCE}")
        return
    log = run("git", "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD").stdout.splitlines()
    found = [(line, problems) for line in log if (problems := problems_of(line.partition(" ")[2]))]
    if found:
        sys.exit("\n".join(f"commit {line}: the subject {'; '.join(problems)}" for line, problems in found))
    print(f"{len(log)} commit subjects are as CONTRIBUTING.md demands")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the checkout."""
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)


if __name__ == "__main__":
    main()
