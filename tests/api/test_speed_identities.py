"""Tokens that are shown at the same time are looked up together, and each stands for itself."""

import asyncio

import pytest
from tenants_asking import As

from apportion.authority.service import Identities
from apportion.errors import NotFoundError, UnauthenticatedError

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(http, token):
    return As(http, token)


async def test_each_of_many_tokens_shown_at_once_stands_for_its_own(root, runtime):
    acme, beta = await root.tenant_of("acme"), await root.tenant_of("beta")
    viewer, gone = await root.token_of("viewer"), await root.token_of("member")
    await root.delete(f"/tokens/{gone.token_id}")
    identities = Identities(runtime)
    shown = [
        (root.token, None),
        (root.token, "acme"),
        (acme.token, None),
        (acme.token, "beta"),
        (beta.token, "beta"),
        (viewer.token, None),
        (gone.token, None),
        ("apt_nobody", None),
    ] * 8
    found = await asyncio.gather(
        *(
            identities.authenticate(token, f"req_{at}", tenant_id=tenant_id)
            for at, (token, tenant_id) in enumerate(shown)
        ),
        return_exceptions=True,
    )
    for at in range(0, len(shown), 8):
        told = found[at : at + 8]
        assert [type(each) for each in told if isinstance(each, Exception)] == [
            NotFoundError,
            UnauthenticatedError,
            UnauthenticatedError,
        ]
        callers = [each for each in told if not isinstance(each, Exception)]
        assert [(each.tenant_id, each.authority.home) for each in callers] == [
            ("root", "root"),
            ("acme", "root"),
            ("acme", "acme"),
            ("beta", "beta"),
            ("root", "root"),
        ]
        assert callers[-1].authority.role == "viewer"
        assert callers[1].ancestors == ("root", "acme")
        asked = [each for each in range(at, at + 8) if not isinstance(found[each], Exception)]
        assert [each.request_id for each in callers] == [f"req_{each}" for each in asked]


async def test_a_revocation_counts_for_who_comes_next_however_busy_it_is(root, runtime):
    identities = Identities(runtime)
    going = True

    async def busy():
        while going:
            await identities.authenticate(root.token)

    crowd = [asyncio.create_task(busy()) for _ in range(16)]
    for _ in range(8):
        door = await root.token_of("viewer")
        await identities.authenticate(door.token)
        await root.delete(f"/tokens/{door.token_id}")
        with pytest.raises(UnauthenticatedError):
            await identities.authenticate(door.token)
    going = False
    await asyncio.gather(*crowd)


async def test_a_policy_counts_for_who_comes_next_however_busy_it_is(root, runtime):
    identities = Identities(runtime)
    caller = await identities.authenticate(root.token)
    assert caller.authority.policies == ()
    text = 'forbid(principal, action == Action::"compute:tenants:delete", resource);'
    made = await root.post("/policies", {"name": "keep", "text": text})
    caller = await identities.authenticate(root.token)
    assert [each.text for each in caller.authority.policies] == [text]
    await root.delete(f"/policies/{made['id']}")
    caller = await identities.authenticate(root.token)
    assert caller.authority.policies == ()
