"""Who comes while others are at work goes with the next group, and answers for itself alone."""

import asyncio

import pytest

from apportion.store.groups import Groups

pytestmark = pytest.mark.anyio


class Work:
    """Answers an ask with itself twice, when it is let; refuses what is negative.

    With ``decides`` the next group may begin as soon as one has its asks.
    """

    def __init__(self, *, decides=False):
        self.groups = []
        self.decides = decides
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, asks, go_on):
        self.groups.append(list(asks))
        if self.decides:
            go_on()
            go_on()  # to say it twice means no more
        await self.go.wait()
        for ask in asks:
            if ask < 0:
                raise ValueError(f"{ask} is negative")
        return [2 * ask for ask in asks]


async def come(groups, *asks, key=None):
    """Let some come one after the other, and give their answers to be."""
    coming = [asyncio.create_task(groups.ask(key, ask)) for ask in asks]
    await asyncio.sleep(0.01)
    return coming


async def test_who_comes_alone_is_served_at_once_and_those_who_come_meanwhile_go_together():
    work = Work()
    groups = Groups(work, most=100)
    assert await groups.ask(None, 1) == 2
    work.go.clear()
    first = await come(groups, 3)
    later = await come(groups, 5, 4, 6)
    work.go.set()
    assert await asyncio.gather(*first, *later) == [6, 10, 8, 12]
    assert work.groups == [[1], [3], [5, 4, 6]]


async def test_a_group_has_a_bound_by_size_and_one_that_is_larger_goes_alone():
    work = Work()
    groups = Groups(work, most=10, size=abs)
    work.go.clear()
    coming = await come(groups, 1, 6, 4, 1, 25, 3)
    work.go.set()
    assert await asyncio.gather(*coming) == [2, 12, 8, 2, 50, 6]
    # All came before the first was served.
    assert work.groups == [[1, 6], [4, 1], [25], [3]]


async def test_what_is_wrong_with_one_is_no_business_of_the_others():
    work = Work()
    groups = Groups(work, most=100)
    work.go.clear()
    coming = await come(groups, 1, 2, -3, 4)
    work.go.set()
    answers = await asyncio.gather(*coming, return_exceptions=True)
    assert answers[:2] + answers[3:] == [2, 4, 8]
    assert str(answers[2]) == "-3 is negative"


async def test_groups_of_different_keys_do_not_wait_for_each_other():
    work = Work()
    groups = Groups(work, most=100)
    work.go.clear()
    [held] = await come(groups, 1, key="busy")
    await come(groups, 2, key="busy")
    [free] = await come(groups, 3, key="free")
    assert work.groups == [[1], [3]]  # the other one of "busy" waits, "free" does not
    work.go.set()
    assert await asyncio.gather(held, free) == [2, 6]


async def test_nothing_is_done_for_who_left_before_it_began_and_the_others_are_served():
    work = Work()
    groups = Groups(work, most=100)
    work.go.clear()
    [first] = await come(groups, 1)
    left, stays = await come(groups, 2, 3)
    left.cancel()
    first.cancel()
    await asyncio.sleep(0)
    work.go.set()
    assert await stays == 6
    assert work.groups == [[1], [3]]
    assert await groups.ask(None, 4) == 8


async def test_the_next_group_begins_when_it_is_let_and_two_at_most_are_at_work():
    work = Work(decides=True)
    groups = Groups(work, most=1)
    work.go.clear()
    coming = await come(groups, 1, 2, 3, 4)
    assert work.groups == [[1], [2]]  # the second one beside the first, which is not through
    work.go.set()
    assert await asyncio.gather(*coming) == [2, 4, 6, 8]
    assert work.groups == [[1], [2], [3], [4]]
    assert await groups.ask(None, 5) == 10


async def test_who_comes_when_all_have_decided_begins_at_once_but_for_a_third_group():
    work = Work(decides=True)
    groups = Groups(work, most=100)
    work.go.clear()
    coming = [(await come(groups, number))[0] for number in range(1, 5)]
    assert work.groups == [[1], [2]]
    work.go.set()
    assert await asyncio.gather(*coming) == [2, 4, 6, 8]
    assert work.groups == [[1], [2], [3, 4]]


async def test_a_group_that_fails_after_it_let_the_next_one_begin_costs_that_one_nothing():
    work = Work(decides=True)
    groups = Groups(work, most=2)
    work.go.clear()
    coming = await come(groups, 1, -2, 3, 4, -5)
    work.go.set()
    answers = await asyncio.gather(*coming, return_exceptions=True)
    assert [each for each in answers if isinstance(each, int)] == [2, 6, 8]
    assert [str(each) for each in answers if not isinstance(each, int)] == [
        "-2 is negative",
        "-5 is negative",
    ]


async def test_who_waits_when_the_work_is_cancelled_is_told_so():
    work = Work()
    groups = Groups(work, most=100)
    work.go.clear()
    await come(groups, 1)
    [waits] = await come(groups, 2)
    [serving] = [task for task in asyncio.all_tasks() if "Groups._serve" in str(task.get_coro())]
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert work.groups == [[1]]
