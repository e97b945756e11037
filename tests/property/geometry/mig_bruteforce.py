"""An independent judge of what fits on a MIG board.

It knows nothing of masks: it reads the raw table, keeps memory slices in sets, sums engines, and
tries every assignment.
"""

import json
from collections import Counter
from importlib import resources

DATA = json.loads(
    resources.files("apportion.geometry").joinpath("data/mig_profiles.json").read_text()
)
GPUS = {gpu["key"]: gpu for gpu in DATA["gpus"]}
KNOWN = [key for key, gpu in GPUS.items() if gpu["profiles"][0]["placements"] is not None]
UNKNOWN = [key for key in GPUS if key not in KNOWN]
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg", "ofa")


class Judge:
    """Judges instances, each a (profile name, first memory slice), on one board."""

    def __init__(self, key):
        self.gpu = GPUS[key]
        self.profiles = {p["name"]: p for p in self.gpu["profiles"]}
        full = max(self.gpu["profiles"], key=lambda p: (p["compute_slices"], p["memory_slices"]))
        self.limits = {e: full[e] for e in ENGINES if full[e] is not None}

    def starts(self, name):
        return [start for start, _ in self.profiles[name]["placements"]]

    def slices(self, instance):
        name, start = instance
        return set(range(start, start + self.profiles[name]["memory_slices"]))

    def legal(self, instances):
        taken = [s for instance in instances for s in self.slices(instance)]
        return len(taken) == len(set(taken)) and self.countable([name for name, _ in instances])

    def countable(self, names):
        rows = [self.profiles[name] for name in names]
        engines = all(sum(row[e] or 0 for row in rows) <= limit for e, limit in self.limits.items())
        compute = sum(row["compute_slices"] for row in rows) <= self.gpu["compute_slices"]
        each = all(n <= self.profiles[m]["max_instances"] for m, n in Counter(names).items())
        return engines and compute and each and len(rows) <= self.gpu["max_instances"]

    def fits(self, names, beside=()):
        return next(self.ways(sorted(names), list(beside)), None) is not None

    def ways(self, names, beside=()):
        """Yield every legal way to put the names, in order, beside the instances there."""
        if not names:
            if self.legal(list(beside)):
                yield []
            return
        for start in self.starts(names[0]):
            chosen = (names[0], start)
            if self.legal([*beside, chosen]):
                for rest in self.ways(names[1:], [*beside, chosen]):
                    yield [chosen, *rest]
