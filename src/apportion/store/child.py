"""The step between our process and PostgreSQL: become the right user, tie our life to the parent's.

Run as a script by ``process.py``, with nothing but the standard library:

    python -I -S child.py PARENT_PID WAY UID GID PROGRAM ARGUMENT...

A script and not a ``preexec_fn``, because a server process has threads, and Python code that runs
between fork and exec in such a process can deadlock on a lock that another thread held.
"""

import ctypes
import os
import sys
from pathlib import Path

# Numbers of the kernel's interface: <linux/prctl.h>, <linux/sched.h>, <signal.h>.
PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
SIGINT = 2

CANNOT_CHANGE_USER = 77  # exit status; EX_NOPERM of <sysexits.h>


def main(arguments: list[str]) -> None:
    parent, way, uid, gid, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if way == "account":
            _become(int(uid), int(gid))
        elif way == "namespace":
            _enter_namespace(libc, int(uid), int(gid))
    except OSError as error:
        sys.stderr.write(f"cannot run as user {uid} ({way}): {error}\n")
        sys.exit(CANNOT_CHANGE_USER)
    # After the change of user, which clears it. The signal asks PostgreSQL for a fast shutdown.
    libc.prctl(PR_SET_PDEATHSIG, SIGINT, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent ended before its child began")
    os.execv(command[0], command)  # noqa: S606 (no shell is wanted)


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _enter_namespace(libc: ctypes.CDLL, uid: int, gid: int) -> None:
    """Appear as ``uid`` to ourselves, and stay who we are to the file system.

    So PostgreSQL sees that it is not root and runs, and still reaches what only we can reach.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER):
        number = ctypes.get_errno()
        raise OSError(number, f"no user namespace: {os.strerror(number)}")
    # The kernel takes a group map from an unprivileged process only after this.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


if __name__ == "__main__":
    main(sys.argv[1:])
