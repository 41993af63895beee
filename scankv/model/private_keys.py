"""Who may read the file of a private key."""

from __future__ import annotations

import stat

from scankv.model.errors import UsageError


def check_key_mode(path: object, mode: int) -> None:
    """Checks that only the owner and the group of a private key can use its file.

    Args:
        path: The file, for the error.
        mode: Its mode, as `stat` returns it.

    Raises:
        UsageError: Other users can read or change it.
    """
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(
            f"users other than the owner and the group of the TLS key {path} can read or change it: its mode must let "
            f"them do neither, as 0600, 0640 and 0440 do, not {stat.S_IMODE(mode):04o}; run: chmod o= {path}, or set "
            "defaultMode: 0440 for a Kubernetes secret",
            option="tls_key",
        )
