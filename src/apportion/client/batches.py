"""What a batch of asks came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.client.answers import error_of_problem
from apportion.errors import ApportionError
from apportion.reservations.schemas import BatchPlan, ReservationView


@dataclass(frozen=True, slots=True)
class Batch:
    """The answers to the asks of a batch, in their order, and what was planned for several.

    An ask that was refused has its error among ``items``; ``plans`` are those of the policy
    ``exact``, one for each pool and window.
    """

    items: list[ReservationView | ApportionError]
    plans: list[BatchPlan]


def batch_of(answer: Mapping[str, Any]) -> Batch:
    """Read the answer to a batch."""
    return Batch(
        items=[
            error_of_problem(item["error"])
            if "error" in item
            else ReservationView.model_validate(item["reservation"])
            for item in answer["items"]
        ],
        plans=[BatchPlan.model_validate(each) for each in answer["plans"]],
    )
