"""A filter of system calls for code that is not trusted: what is not listed is refused with EPERM.

Linux on x86-64. Allowed is what an interpreter needs to compute and to use files (which of
them is Landlock's matter): no new processes or programs, no sockets, no signals or limits
of other processes, no mounts, no changes of owners or modes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_ALLOWED = """
read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 preadv2=327 pwritev2=328
lseek=8 close=3 close_range=436 open=2 openat=257 openat2=437 creat=85 stat=4 fstat=5 lstat=6 newfstatat=262
statx=332 access=21 faccessat=269 faccessat2=439 readlink=89 readlinkat=267 statfs=137 fstatfs=138
getdents64=217 getcwd=79 chdir=80 fchdir=81 mkdir=83 mkdirat=258 rmdir=84 unlink=87 unlinkat=263 rename=82
renameat=264 renameat2=316 symlink=88 symlinkat=266 link=86 linkat=265 truncate=76 ftruncate=77 fallocate=285
fsync=74 fdatasync=75 fadvise64=221 copy_file_range=326 sendfile=40 flock=73 dup=32 dup2=33 dup3=292
pipe=22 pipe2=293 poll=7 ppoll=271 select=23 pselect6=270 epoll_create1=291 epoll_ctl=233 epoll_wait=232
epoll_pwait=281 epoll_pwait2=441 eventfd2=290 timerfd_create=283 timerfd_settime=286 timerfd_gettime=287
mmap=9 munmap=11 mprotect=10 mremap=25 madvise=28 mincore=27 msync=26 brk=12 membarrier=324 get_mempolicy=239
rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130
sigaltstack=131 restart_syscall=219 pause=34 alarm=37 setitimer=38 getitimer=36 futex=202 futex_waitv=449
set_robust_list=273 get_robust_list=274 rseq=334 set_tid_address=218 gettid=186 getpid=39 getppid=110
getuid=102 geteuid=107 getgid=104 getegid=108 getresuid=118 getresgid=120 getgroups=115 getpgrp=111
getpgid=121 getsid=124 uname=63 sysinfo=99 times=100 getrusage=98 getrlimit=97 umask=95 getcpu=309
sched_yield=24 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 sched_get_priority_max=146
sched_get_priority_min=147 getpriority=140 clock_gettime=228 clock_getres=229 clock_nanosleep=230 nanosleep=35
gettimeofday=96 time=201 getrandom=318 arch_prctl=158 exit=60 exit_group=231
"""
_CLONE, _CLONE3, _PRLIMIT64, _FCNTL, _IOCTL = 56, 435, 302, 72, 16
_CLONE_THREAD = 0x10000
_FCNTL_OF_SIGNALS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: input that signals another process
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX

# Opcodes of classic BPF; offsets into struct seccomp_data.
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_X86_64 = 0xC000003E
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _ABSENT = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def apply() -> None:
    """From here on for this process, all its threads to come, for good. Needs ``no_new_privs``. Raises ``OSError``."""
    if (machine := os.uname().machine) != "x86_64":
        raise OSError(f"there is no filter for {machine}")
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _program())
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), filter_, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "seccomp filter refused")


def _program() -> list[tuple[int, int, int, int]]:
    """(opcode, jump if true, jump if false, operand); jumps count the instructions that are skipped."""
    program = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for entry in _ALLOWED.split():
        program += _on(int(entry.partition("=")[2]), [(_RETURN, 0, 0, _ALLOW)])
    # The C library makes threads by clone3 and falls back to clone, whose flags a filter can read.
    program += _on(_CLONE3, [(_RETURN, 0, 0, _ABSENT)])
    program += _on(_CLONE, [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)])
    program += _on(_PRLIMIT64, [_argument(0), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)])
    refused = [step for command in _FCNTL_OF_SIGNALS for step in ((_EQUAL, 0, 1, command), (_RETURN, 0, 0, _REFUSE))]
    program += _on(_FCNTL, [_argument(1), *refused, (_RETURN, 0, 0, _ALLOW)])
    allowed = [step for request in _IOCTLS for step in ((_EQUAL, 0, 1, request), (_RETURN, 0, 0, _ALLOW))]
    program += _on(_IOCTL, [_argument(1), *allowed])
    return [*program, (_RETURN, 0, 0, _REFUSE)]


def _on(number: int, block: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """The block for one system call; past its end the call is refused, since the accumulator may be overwritten."""
    block = [*block, (_RETURN, 0, 0, _REFUSE)]
    return [(_EQUAL, 0, len(block), number), *block]


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument: all that the kernel reads of flags, commands and process ids."""
    return (_LOAD, 0, 0, _ARGUMENT + 8 * index)
