"""Confines the process it runs in, and finds out by trying what is then in force.

``python -m tools.python`` prints it for this machine. Nothing here needs root. Only the
standard library is imported, and little of it, since every confined process pays for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from tools import landlock, seccomp

#: What each measure keeps a process from, in words for logs and for people.
MEASURES = {
    "limits": "memory, CPU time, file size and open files are limited",
    "processes": "it can start no process and no program",
    "network": "it can open no connection",
    "files": "it can read nothing but Python's libraries and its own folder, and write nothing but the folder",
    "quota": "its folder is limited in size and gone with the process",
}
#: Without these, what a model writes could reach other people's data or take the machine down.
REQUIRED = ("limits", "processes", "network", "files")

_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_MS_NOSUID_NODEV_NOEXEC, _MS_PRIVATE_REC = 0b1110, 1 << 18 | 1 << 14
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9


def confine(folder: str, readable: list[str], limits: dict[str, int]) -> list[str]:
    """Give up what this process does not need, for good; which of ``MEASURES`` are in force then.

    folder: where it may write. readable: folders of libraries. limits: memory_mb (address space),
    cpu_s (whole life), file_mb (one file), folder_mb (all files). To be called with one thread running
    and before anything untrusted is read. A measure that cannot be had says why on standard error.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # goes with whoever started it
    uid, gid = os.geteuid(), os.getegid()
    own_namespaces = not libc.unshare(_NEWUSER | _NEWNET | _NEWNS | _NEWIPC)
    quota = own_namespaces and _keep_user(uid, gid) and _mount_tmpfs(libc, folder, limits["folder_mb"])
    os.chdir(folder)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        landlock.apply(readable, [folder], ["/dev/null", "/dev/zero", "/dev/urandom"])
    except OSError as error:
        print(f"files: {error}", file=sys.stderr)
    _set_limits(limits)
    try:
        seccomp.apply()
    except OSError as error:
        # By user, and not for root: the filter does it better.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        print(f"processes, network: {error}", file=sys.stderr)
    in_force = {
        "limits": resource.getrlimit(resource.RLIMIT_AS)[1] == limits["memory_mb"] << 20,
        "processes": not _can_fork(),
        # The namespace alone would leave Unix sockets, which are found by path.
        "network": not _can_open_socket(),
        "files": not (_can_list("/") or _can_list("/proc") or _can_list(os.path.dirname(folder))),
        "quota": quota,
    }
    return [measure for measure, held in in_force.items() if held]


def _set_limits(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))  # SIGXCPU, which names the cause
    for what, value in (
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))


def _keep_user(uid: int, gid: int) -> bool:
    """Stay who we were in the new user namespace; on a tmpfs, somebody without a name could write nothing."""
    try:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    except OSError as error:  # root without capabilities, for one
        print(f"quota: {error}", file=sys.stderr)
        return False
    return True


def _mount_tmpfs(libc: ctypes.CDLL, folder: str, size_mb: int) -> bool:
    if libc.mount(None, b"/", None, ctypes.c_ulong(_MS_PRIVATE_REC), None):
        return False
    options = f"size={size_mb}m,nr_inodes=4096,mode=700".encode()
    return not libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(_MS_NOSUID_NODEV_NOEXEC), options)


def _can_fork() -> bool:
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


def _can_open_socket() -> bool:
    import _socket  # the C part alone: a tenth of the time

    try:
        _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


def _can_list(folder: str) -> bool:
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True
