"""Which operating-system user runs the embedded PostgreSQL.

PostgreSQL refuses to run as root. Started by root, it runs under an unprivileged account that
exists, when that account can reach the data and the programs. Otherwise (a state directory or a
virtual environment below /root) it runs in a user namespace, where our own user has another number.
Who owns the data directory decides at each later start, so that files never change hands.
"""

import os
import pwd
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apportion.errors import UnavailableError

_ACCOUNTS = ("postgres", "nobody")
_NOBODY = 65534
_SEARCH, _READ_AND_SEARCH = 0o1, 0o5
# Bits of CapEff (capabilities(7)): CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID.
# Without them root could start the server under another account, and not enter its socket's
# directory or never stop it.
_NEEDED_TO_CHANGE_USER = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7

HINT = "Set APPORTION_DATABASE_URL to a PostgreSQL of your own, or start Apportion as a plain user."


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and how to become it: as we are, by changing to it, or in a user namespace."""

    way: Literal["same", "account", "namespace"]
    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Give ``path`` to this account (in a namespace, and as we are, it is ours already)."""
        if self.way == "account":
            os.chown(path, self.uid, self.gid)


def choose(data: Path, programs: Sequence[Path]) -> Account:
    """Return the account for a data directory that may not exist yet.

    Raises UnavailableError when the directory belongs to somebody we cannot run PostgreSQL as.
    """
    euid = os.geteuid()
    owner = data.stat() if data.exists() else None
    if euid != 0:
        if owner is not None and owner.st_uid != euid:
            raise UnavailableError(
                f"the data directory {data} belongs to user {_name(owner.st_uid)}",
                hint=f"Start Apportion as that user. {HINT}",
            )
        return _as_we_are() if _known(euid) else _namespace()
    if owner is None:
        return _account_for_new(data, programs)
    return _account_of(owner, data, programs)


def _account_for_new(data: Path, programs: Sequence[Path]) -> Account:
    for name in _ACCOUNTS:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            if _may_become(entry.pw_uid) and _reaches(entry.pw_uid, entry.pw_gid, data, programs):
                return Account(way="account", uid=entry.pw_uid, gid=entry.pw_gid)
    return _namespace()


def _account_of(owner: os.stat_result, data: Path, programs: Sequence[Path]) -> Account:
    if owner.st_uid == 0:
        return _namespace()
    if _may_become(owner.st_uid) and _reaches(owner.st_uid, owner.st_gid, data, programs):
        return Account(way="account", uid=owner.st_uid, gid=owner.st_gid)
    raise UnavailableError(
        f"the data directory {data} belongs to user {_name(owner.st_uid)}, who cannot reach it or "
        f"{programs[0].parent}",
        hint=f"Let that user enter each directory above them. {HINT}",
    )


def _as_we_are() -> Account:
    return Account(way="same", uid=os.geteuid(), gid=os.getegid())


def _namespace() -> Account:
    """Take a number that has a name: initdb refuses to run as a user without one."""
    uid = _NOBODY if _known(_NOBODY) else next(e.pw_uid for e in pwd.getpwall() if e.pw_uid != 0)
    return Account(way="namespace", uid=uid, gid=uid)


def _reaches(uid: int, gid: int, data: Path, programs: Sequence[Path]) -> bool:
    directories = {parent for path in (data, *programs) for parent in path.parents}
    return all(_allows(path, uid, gid, _SEARCH) for path in directories) and all(
        _allows(path, uid, gid, _READ_AND_SEARCH) for path in programs
    )


def _allows(path: Path, uid: int, gid: int, wanted: int) -> bool:
    """Read the permission bits as the kernel does for that user and its one group."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == uid:
        mode >>= 6
    elif status.st_gid == gid:
        mode >>= 3
    return mode & wanted == wanted


def _may_become(uid: int) -> bool:
    """Tell root from the root of a container, who may lack capabilities or any other user."""
    status = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    if int(fields["CapEff"], 16) & _NEEDED_TO_CHANGE_USER != _NEEDED_TO_CHANGE_USER:
        return False
    users = [map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= uid < first + number for first, _, number in users)


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name if _known(uid) else str(uid)
