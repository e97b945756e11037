"""The one door to OR-Tools' CP-SAT, an optional part that is loaded when something is solved.

Whole numbers in, whole numbers out. One worker and a fixed seed: the same question gets the same
answer, unless it is the wall clock that ends the search.
"""

from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TIME_LIMIT: Final = timedelta(seconds=10)
"""How long a search may take where nobody says."""
INSTALL: Final = "pip install 'apportion[exact]'"

_SECOND: Final = timedelta(seconds=1)


class Solved(NamedTuple):
    """The best that was found: ``values`` by a variable's index.

    No solution's objective, its constant aside, is below ``bound``; ``optimal`` says that this
    one's is not above it.
    """

    values: Sequence[int]
    bound: int
    optimal: bool


def is_installed() -> bool:
    """Tell whether OR-Tools is there."""
    return find_spec("ortools") is not None


def check_installed(*, field: str) -> None:
    """Raise InvalidInputError that names ``field`` where OR-Tools is missing."""
    if not is_installed():
        raise InvalidInputError(
            "needs OR-Tools, which is not installed",
            field=field,
            given="exact",
            hint=f"Install it: {INSTALL}",
        )


def new_model() -> "cp_model.CpModel":
    """Make an empty model."""
    from ortools.sat.python import cp_model

    return cp_model.CpModel()


def minimise(model: "cp_model.CpModel", time_limit: timedelta) -> Solved | None:
    """Search until it is proven that nothing is better, or until the time is over.

    None where nothing was found by then, not even what was hinted at.

    The limit holds for the clock and for the solver's own count of its work, which is the same on
    every machine: whichever comes first.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    whole, rest = divmod(time_limit, _SECOND)
    seconds = f"{whole}.{rest // timedelta(microseconds=1):06}"
    solver.parameters.parse_text_format(
        "num_workers: 1 random_seed: 1 "
        f"max_time_in_seconds: {seconds} max_deterministic_time: {seconds}"
    )
    status = solver.solve(model)
    answer = solver.response_proto
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    return Solved(
        tuple(cast("Sequence[int]", answer.solution)),
        answer.inner_objective_lower_bound,
        status == cp_model.OPTIMAL,
    )
