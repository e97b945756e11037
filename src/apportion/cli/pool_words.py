"""The words that pools and quotas know, and limits as people write them."""

import argparse
from typing import Final

from apportion.cli.arguments import whole_number
from apportion.errors import InvalidInputError

SHARINGS: Final = ("exclusive", "mig", "timeslice", "mps")
ATOM_CLASSES: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share")
CLASSES: Final = ("metal-host", "vps-host", "kubernetes-host", "slurm-host", "provider")
AGENTS: Final = ("apportion", "none")
RESOURCES: Final = (
    *ATOM_CLASSES,
    "gpuEquivalents",
    "vcpu",
    "memoryGiB",
    "hugepages2Mi",
    "hugepages1Gi",
)
UNLIMITED: Final = ("unlimited", 2147483647)
"""What no pool comes near: the word, and the owner's default for whole GPUs."""
LIMIT_GRAMMAR: Final = "a number such as 32, 2.5 or 7/2, or unlimited"


def read_limit(text: str, *, field: str) -> int | str:
    """Read a quota's limit: a number, whole or not, or the word unlimited."""
    try:
        return whole_number(text)
    except argparse.ArgumentTypeError:
        if text == "unlimited" or _is_exact(text):
            return text
    raise InvalidInputError("is no limit", field=field, given=text[:60], allowed=LIMIT_GRAMMAR)


def read_quota(text: str, *, field: str) -> tuple[str, int | str]:
    """Read ``RESOURCE=LIMIT``."""
    resource, equals, limit = text.partition("=")
    if not equals or not resource:
        raise InvalidInputError(
            "is no limit", field=field, given=text[:60], allowed="RESOURCE=LIMIT"
        )
    return resource, read_limit(limit, field=field)


def add_quota_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--quota RESOURCE=LIMIT``, once for each resource."""
    parser.add_argument(
        "--quota",
        action="append",
        default=[],
        metavar="RESOURCE=LIMIT",
        help=f"{', '.join(RESOURCES)}; a number or unlimited (again for more)",
    )


def _is_exact(text: str) -> bool:
    """Tell whether this is a decimal or a fraction in digits; the server judges its size."""
    parts = text.replace(".", "/", 1).split("/")
    return len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)  # noqa: PLR2004 - two sides
