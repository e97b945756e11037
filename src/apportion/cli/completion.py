"""`apportion completion`: what a shell has to read to complete commands and flags."""

import argparse
import sys
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")

_EXAMPLES: Final = """\
examples, for the shell that is open:
  eval "$(apportion completion bash)"
  eval "$(apportion completion zsh)"         after `autoload -Uz compinit && compinit`
  apportion completion fish | source
for every new one:
  apportion completion bash > ~/.local/share/bash-completion/completions/apportion
  apportion completion zsh > "${fpath[1]}/_apportion"
  apportion completion fish > ~/.config/fish/completions/apportion.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which shell."""
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script; 0."""
    from argcomplete.shell_integration import shellcode

    # Without the shell's own completion: it would offer files in every place.
    sys.stdout.write(shellcode(["apportion"], use_defaults=False, shell=args.shell))
    return 0
