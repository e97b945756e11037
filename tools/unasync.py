#!/usr/bin/env python3
"""Write the synchronous client from the asynchronous one, so that nobody keeps two by hand.

`client/aio` is the source, `client/sync` is made from it: `async` and `await` fall away, names lose
their `Async`. What no rule can say stands in the source:

    # sync: CODE            replaces the next line by CODE; `# sync: -` drops that line
    # async only: … # end   drops everything between

With --check nothing is written; what is not current is named, and the exit code is 1.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apportion" / "client" / "aio"
MADE = SOURCE.with_name("sync")
RENAMED = {
    "aio": "sync",
    "aclose": "close",
    "aclosing": "closing",
    "aread": "read",
    "asyncio": "time",
    "AsyncListing": "Page",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
DROPPED = {"async", "await"}


def main() -> int:
    """Write all files, or check them."""
    made = {path.name: made_from(path) for path in sorted(SOURCE.glob("*.py"))}
    stale = [
        name
        for name in sorted({*made, *(path.name for path in MADE.glob("*.py"))})
        if name not in made
        or not (MADE / name).exists()
        or (MADE / name).read_text("utf-8") != made[name]
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            sys.stderr.write(f"client/sync/{name} is not what client/aio/{name} makes\n")
        return 1 if stale else 0
    for name in stale:
        if name in made:
            (MADE / name).write_text(made[name], "utf-8")
        else:
            (MADE / name).unlink()
    return 0


def made_from(path: Path) -> str:
    """Return the synchronous form of a file."""
    text = _renamed(_marked(path.read_text("utf-8")))
    header = f"# Made from client/aio/{path.name} by tools/unasync.py: change that one.\n"
    return _formatted(header + text, MADE / path.name)


def _marked(text: str) -> str:
    """Do what the marks in the source ask for."""
    text = re.sub(r"^ *# async only:\n.*?^ *# end\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *# sync: -\n.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^( *)# sync: (.*)\n.*\n", r"\1\2\n", text, flags=re.MULTILINE)


def _renamed(text: str) -> str:
    """Rename what is named and drop what waits; words in strings and comments keep their own."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    pieces: list[str] = []
    done = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.NAME:
            pieces += (text[done:begin], _name(token.string))
            done = end + (token.string in DROPPED)
        elif token.type in {tokenize.STRING, tokenize.COMMENT}:
            told = re.sub(r"\bAsync[A-Z]\w*", lambda found: _name(found[0]), token.string)
            pieces += (text[done:begin], told)
            done = end
    return "".join(pieces) + text[done:]


def _name(name: str) -> str:
    if name in DROPPED:
        return ""
    return RENAMED.get(name) or re.sub(r"^(_?)Async(?=[A-Z])", r"\1", name)


def _formatted(text: str, path: Path) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(path), "-"]
    for command in (
        ["check", "--quiet", "--select", "I,F401,UP028", "--fix-only", "--unsafe-fixes", *name],
        ["format", "--quiet", *name],
    ):
        done = subprocess.run(  # noqa: S603 - our own formatter, our own text
            [*ruff, *command], input=text, capture_output=True, text=True, check=True, cwd=ROOT
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
