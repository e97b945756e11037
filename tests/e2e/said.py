"""What the command line answers to a test."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


def data(said: Said):
    assert said.code == 0, said.err
    return said.data
