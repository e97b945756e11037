"""Attack one area: ``python -m torture quota --seconds 60 --seed 1 [--break]``.

Prints what was done and ends in ``violations: N``. Exits 1 where a rule was broken, or where so
little happened that nothing was tested; 2 for a wrong argument. With ``--break`` the protection is
taken away on purpose: then violations must be found, and finding none exits 1.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from torture import partitions, placement, quota
from torture.crowd import Report

AREAS = {"partitions": partitions.attack, "placement": placement.attack, "quota": quota.attack}


def main(arguments: Sequence[str]) -> int:
    """Run an attack and judge it."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--break", dest="broken", action="store_true")
    args = parser.parse_args(arguments)
    print(f"area: {args.area}\nseconds: {args.seconds}\nseed: {args.seed}", flush=True)
    report = asyncio.run(AREAS[args.area](args.seconds, args.seed, args.broken))
    return _judge(report, args.seconds, broken=args.broken)


def _judge(report: Report, seconds: int, *, broken: bool) -> int:
    for name, count in sorted(report.counts.items()):
        print(f"{name}: {count}")
    lacking = [
        f"{name} {report.counts[name]} of at least {least * seconds // 60}"
        for name, least in report.least_in_a_minute.items()
        if report.counts[name] < least * seconds // 60
    ]
    for each in lacking:
        print(f"too little happened: {each}")
    for violation in report.violations[:20]:
        print(f"violation: {violation}")
    print(f"violations: {len(report.violations)}")
    if broken:
        return 0 if report.violations else 1
    return 1 if report.violations or lacking else 0


sys.exit(main(sys.argv[1:]))
