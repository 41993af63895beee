"""Which facts about a data directory and its disk are in order for a server. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from scankv.cli.directory_facts import DirectoryFacts, Mount
from scankv.cli.findings import Finding, HostCheck, mebibytes
from streaming_server.storage.files.disk_reserve import reserve_bytes

_LOCAL: Final = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"])
_IN_MEMORY: Final = frozenset(["tmpfs", "ramfs"])
_LAYERED: Final = frozenset(["overlay", "overlayfs", "aufs"])
_NETWORK: Final = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre", "beegfs"]
)
_UNSAFE_OPTIONS: Final = frozenset(["nobarrier", "barrier=0", "data=writeback"])
_FREE_SHARE: Final = 10
_FEW_FILES: Final = 100_000
_SLOW_SYNC_SECONDS: Final = 0.02
_USELESS_SYNC_SECONDS: Final = 0.2
_SLOW_BYTES_PER_SECOND: Final = 50 << 20
_NOT_GIVEN: Final = "no data directory was given"
_GIVE: Final = "scankv doctor DIR"


def check_directory(directory: DirectoryFacts | None, user_id: int) -> Iterator[Finding]:
    """Checks that a server of this user would take the directory."""
    check = HostCheck("directory", "a server must write to its directory, and refuses that of another program")
    if directory is None:
        yield check.unknown(_NOT_GIVEN, _GIVE)
        return
    where = str(directory.measured)
    if directory.problem is not None:
        yield check.fail(directory.problem, "scankv doctor DIR with the directory of the server")
    elif directory.owner_id is None:
        yield check.unknown(f"{where} cannot be read", f"ls -ld {where}")
    elif not directory.is_writable:
        yield check.fail(f"{where} belongs to {directory.owner}, and this user cannot write there", _own(directory))
    elif not directory.exists:
        yield check.ok(f"{directory.path} does not exist, and can be created in {where}")
    elif directory.owner_id != user_id:
        yield check.warn(
            f"it belongs to {directory.owner}, who could not read what this user creates there",
            f"sudo -u {directory.owner} scankv doctor {directory.path}",
        )
    elif directory.mode & 0o077:
        yield check.warn(f"other users may enter it (mode {directory.mode:04o})", f"chmod 700 {directory.path}")
    else:
        content = "it is empty" if directory.format is None else f"it has format {directory.format}"
        use = "" if directory.server_pid is None else f", and process {directory.server_pid} uses it"
        yield check.ok(f"{content}, and only {directory.owner} may enter it{use}")


def _own(directory: DirectoryFacts) -> str:
    return f"install -d -m 700 -o scankv {directory.path}, or sudo -u USER scankv doctor {directory.path}"


def check_file_system(directory: DirectoryFacts | None) -> Iterator[Finding]:
    """Checks that the file system keeps what was synced, for this host only."""
    check = HostCheck("file system", "acknowledged writes are as durable as the file system that keeps them")
    if directory is None:
        yield check.unknown(_NOT_GIVEN, _GIVE)
    elif directory.mount is None:
        yield check.unknown("the mounts cannot be read", f"findmnt -T {directory.measured}")
    else:
        yield _judge_mount(check, directory.mount, directory)


def _judge_mount(check: HostCheck, mount: Mount, directory: DirectoryFacts) -> Finding:
    found = f"{mount.kind} on {mount.source}"
    if "ro" in mount.options:
        return check.fail(f"{found} is read-only", f"mount -o remount,rw {directory.measured}; see dmesg for the cause")
    if mount.kind in _IN_MEMORY:
        return check.fail(f"{found}: a reboot loses everything", "give a directory on a disk")
    if mount.kind in _LAYERED:
        return check.fail(
            f"{found}: removing the container removes the data", "mount a volume: -v scankv-data:/var/lib/scankv"
        )
    if mount.kind in _NETWORK or mount.kind.startswith("fuse."):
        return check.fail(
            f"{found}: locks and syncs depend on another machine", "give a directory on a disk of this machine"
        )
    if unsafe := mount.options & _UNSAFE_OPTIONS:
        return check.fail(
            f"{found} is mounted with {', '.join(sorted(unsafe))}: a loss of power may lose acknowledged writes",
            f"mount -o remount,barrier=1 {directory.measured}, and correct /etc/fstab",
        )
    if mount.kind not in _LOCAL:
        known = ", ".join(sorted(_LOCAL))
        return check.unknown(f"{found}: it is not among those that are known to be local", f"one of {known} is safe")
    return check.ok(found)


def check_free_space(directory: DirectoryFacts | None, min_free_bytes: int) -> Iterator[Finding]:
    """Checks that writes find space, and that files can be created."""
    check = HostCheck("free space", "a server refuses writes while less than its reserve is free")
    files = HostCheck("free files", "each table takes dozens of files")
    if directory is None:
        yield check.unknown(_NOT_GIVEN, _GIVE)
        return
    free, size = directory.free_bytes, directory.disk_bytes
    if free is None or size is None:
        yield check.unknown("the free space cannot be read", f"df {directory.measured}")
        return
    reserve = reserve_bytes(min_free_bytes, size)
    found = f"{mebibytes(free)} of {mebibytes(size)} free, the reserve is {mebibytes(reserve)}"
    advice = "free some space or enlarge the disk: du -x -d 2 / | sort -n | tail"
    if free < reserve:
        yield check.fail(found, advice)
    elif free < max(2 * reserve, size // _FREE_SHARE):
        yield check.warn(found, advice)
    else:
        yield check.ok(found)
    # Some file systems have no fixed number.
    if directory.free_files is not None:
        found = f"{directory.free_files:,} can be created"
        is_few = directory.free_files < _FEW_FILES
        yield files.warn(found, f"df -i {directory.measured}") if is_few else files.ok(found)


def check_disk_speed(directory: DirectoryFacts | None) -> Iterator[Finding]:
    """Checks how long a sync takes, and how much the disk writes."""
    syncs = HostCheck(
        "sync latency", "a write is acknowledged after a sync of its log, so a lone write takes longer than that"
    )
    stream = HostCheck("write rate", "flushes and compactions write each row several times")
    if directory is None or directory.speed is None:
        found = _NOT_GIVEN if directory is None else f"no file could be written in {directory.measured}"
        yield syncs.unknown(found, _GIVE)
        yield stream.unknown(found, _GIVE)
        return
    speed = directory.speed
    half, longest = median(speed.sync_seconds), speed.sync_seconds[-1]
    found = f"{half * 1000:.2f} ms in the median of {len(speed.sync_seconds)}, {longest * 1000:.1f} ms at most"
    advice = "use a local SSD; find what else writes to it: iostat -x 1, or pidstat -d 1"
    if half > _USELESS_SYNC_SECONDS:
        yield syncs.fail(found, advice)
    elif half > _SLOW_SYNC_SECONDS:
        yield syncs.warn(found, advice)
    else:
        yield syncs.ok(found)
    rate = speed.bytes_per_second
    if rate is None:
        yield stream.unknown("it was not measured, to leave the space free", f"df {directory.measured}")
    elif rate < _SLOW_BYTES_PER_SECOND:
        yield stream.warn(f"{mebibytes(int(rate))}/s", advice)
    else:
        yield stream.ok(f"{mebibytes(int(rate))}/s")
