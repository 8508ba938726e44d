"""Files by Landlock: a process gives up all of the file system but what is listed (Linux 6.2 and newer).

See https://docs.kernel.org/userspace-api/landlock.html. The numbers of its system calls are
the same on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1  # flag of landlock_create_ruleset
_PATH_BENEATH = 1
_READ = 1 << 2 | 1 << 3  # files, directories
_READ_FILE, _WRITE_FILE = 1 << 2, 1 << 1
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # execute, write, read, truncate, ioctl
#: Rights that each version of the interface knows, as a mask. Version 3 (truncate) is the first that keeps
#: a process from changing what it may not write.
_RIGHTS = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
_EXECUTE, _MAKE_SPECIAL = 1 << 0, 1 << 6 | 1 << 9 | 1 << 11  # devices, sockets
_TCP, _SCOPES = 0b11, 0b11  # bind and connect (version 4); abstract sockets and signals (version 6)


def version() -> int:
    """Version of the kernel's interface; 0 where there is none."""
    return max(0, _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION)))


def apply(readable: list[str], writable: list[str], devices: list[str]) -> None:
    """From here on for this process, for good. Needs ``no_new_privs``. Raises ``OSError``.

    readable, writable: folders with all below, or files; one that is not there is left out. devices: files to
    read and write. Where the kernel knows how, TCP, and signals to processes outside, are given up too.
    """
    known = version()
    if known < min(_RIGHTS):
        raise OSError(f"Landlock version {known}; 3 is needed")
    rights = _RIGHTS[max(v for v in _RIGHTS if v <= known)]
    attributes = struct.pack("QQQ", rights, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _call(_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    for paths, access in (
        (readable, _READ),
        (writable, rights & ~(_EXECUTE | _MAKE_SPECIAL)),
        (devices, _READ_FILE | _WRITE_FILE),
    ):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            fitting = access if stat.S_ISDIR(os.fstat(fd).st_mode) else access & _OF_FILES
            _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", fitting, fd), 0)
            os.close(fd)
    _call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    value = _libc().syscall(number, *arguments)
    if value < 0:
        raise OSError(ctypes.get_errno(), "Landlock: " + os.strerror(ctypes.get_errno()))
    return value


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
