"""Run benchmarks and write ``bench/results/NAME.json``: ``{"name", "machine", "figures"}``.

python -m bench               all but the replays
python -m bench startup       one
python -m bench bench-openb   a replay, which takes many minutes; QUICK=1 for a look
"""

import json
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

NAMES = ("startup", "main_job", "layouts")
REPLAYS = (
    "bench-openb",
    "bench-churn",
    "bench-mig",
    "bench-decision",
    "bench-durable",
    "bench-reports",
)
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """Say what the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
    }


def main(names: list[str]) -> int:
    """Run the named benchmarks, by default all but replays; 2 for a name that is none."""
    known = (*NAMES, *REPLAYS)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such benchmark: {unknown[0]} (there are {', '.join(known)})", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in names or NAMES:
        figures = import_module(f"bench.{name.removeprefix('bench-')}").run()
        result = {"name": name, "machine": machine(), "figures": figures}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"\n{name}: {len(figures)} figures")
        for key, value in figures.items() if name in NAMES else ():
            print(f"  {key:<44} {value:>14,.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
