"""What asks leave behind is freed by its count: the search for cycles is turned down to rare."""

import gc

import pytest
from services_world import World

from apportion.errors import ApportionError
from apportion.reservations.schemas import ReservationCreate, ReservationView
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
NOWHERE = "pool_01k5d0v6f8q0e6m7x9w2y4z1ab"


@pytest.fixture
def cycles():
    """Return how many objects of some types only the search for cycles would free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found(*types):
        gc.collect()
        return [each for each in gc.garbage if isinstance(each, types)]

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("what", ["placed", "pending", "refused", "not_found"])
async def test_asks_leave_nothing_behind_in_cycles(world: World, cycles, what):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    request = {
        "placed": lambda: ask(pool.id, device()),
        "pending": lambda: ask(pool.id, device(where=[("node", "In", ["n2"])])),
        "refused": lambda: ask(pool.id, device(), end="1999-01-01T00:00Z"),
        "not_found": lambda: ask(NOWHERE, device()),
    }[what]
    answers, _ = await world.reservations.create_all(world.caller, [request(), request()])
    assert len(answers) == 2
    del answers
    assert cycles(ReservationCreate, ReservationView, ApportionError) == []
