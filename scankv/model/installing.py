"""How ScanKV is installed: the one place that says so, for errors and advice.

No package index has ScanKV, so no text may tell users to install it from one by its name: anyone could publish another
package under that name. `tests/docs/test_install.py` finds such texts in the whole repository.
"""

from __future__ import annotations


def command_to_install(extra: str) -> str:
    """Returns what a message says about installing an extra of the distribution, to be put after a semicolon."""
    return f'in a checkout of ScanKV, run: pip install ".[{extra}]"'
