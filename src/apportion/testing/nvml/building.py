"""Building the library: once for each state of its source, with whatever C compiler is there."""

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from apportion.errors import UnavailableError
from apportion.testing.nvml.layout import header

LIBRARY: Final = "libnvidia-ml.so.1"
_SOURCE: Final = Path(__file__).with_name("c")
_FLAGS: Final = (
    "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC",
    "-fvisibility=hidden", "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}",
)  # fmt: skip
_LONGEST_SECONDS: Final = 300


def build_library(cache: Path | None = None) -> Path:
    """Return a folder that holds the library, for LD_LIBRARY_PATH; it is built if it is not there.

    UnavailableError where there is no C compiler, or it refuses the source.
    """
    if cache is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(base) / "apportion" / "nvml"
    compiler = _compiler()
    folder = cache / _key(compiler)
    if not (folder / LIBRARY).exists():
        _build(compiler, folder)
    return folder


def _compiler() -> list[str]:
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    if found := shutil.which("cc"):
        return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise UnavailableError(
        "simulated GPUs need a C compiler, once",
        hint="Install gcc or clang, name one in CC, or: pip install 'apportion[simulate]'",
        details={"reason": "no_compiler"},
    )


def _sources(pattern: str) -> list[Path]:
    return sorted(_SOURCE.glob(pattern))


def _key(compiler: list[str]) -> str:
    digest = hashlib.sha256(header().encode())
    for part in (*compiler, *_FLAGS):
        digest.update(part.encode())
    for path in _sources("*.[ch]"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: list[str], folder: Path) -> None:
    """Compile beside the place and move there whole: others may build at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        (made / "state.h").write_text(header())
        sources = [str(path) for path in _sources("*.c")]
        command = [*compiler, *_FLAGS, "-I", str(made), "-o", str(made / LIBRARY), *sources]
        try:
            done = subprocess.run(  # noqa: S603 - the compiler is the user's own
                command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(compiler, str(error)) from error
        if done.returncode != 0:
            raise _refused(compiler, done.stderr.strip())
        try:
            made.rename(folder)
        except OSError:
            if not (folder / LIBRARY).exists():
                raise


def _refused(compiler: list[str], said: str) -> UnavailableError:
    return UnavailableError(
        f"the library of the simulated GPUs cannot be built: {said[:2000]}",
        hint="CC names the compiler; unset, cc is taken, or the package ziglang",
        details={"reason": "compiler_failed", "compiler": shlex.join(compiler)},
    )
