"""From an ask to the device request of a reservation: the planner's choice, in a pool's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.cli.connection import naming
from apportion.cli.server_caps import capabilities_of, part_class, split_capabilities
from apportion.errors import InvalidInputError, InvalidStateError
from apportion.planning.asks import FractionalAsk
from apportion.planning.capabilities import ClusterGpuCaps
from apportion.planning.isolation import Mechanism
from apportion.planning.mechanisms import MechanismChoice, Refusal, decide

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.placement.selectors import Expression
    from apportion.pools.schemas import PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one piece of the ask is met in a pool, and the device request that says so."""

    choice: MechanismChoice
    device: Mapping[str, Any]
    remark: str | None = None


def plan_in_pools(
    client: "Client", ask: FractionalAsk, pools: "Sequence[PoolView]", *, field: str
) -> Plan:
    """Choose once for all the candidate pools: a reservation makes one request of all of them.

    Raises InvalidStateError where a pool cannot meet the ask, InvalidInputError where the pools
    would meet it in different ways; ``field`` is the flag that the ask came by.
    """
    plans = {pool.name: _plan(client, ask, pool, field) for pool in pools}
    first, *others = plans.values()
    if any(plan.device != first.device for plan in others):
        ways = "; ".join(f"{name}: {describe(plan)}" for name, plan in plans.items())
        raise InvalidInputError(
            f"the pools would meet this ask in different ways ({ways})",
            field="--pool",
            given=",".join(plans),
            allowed="pools that are split alike, or one pool",
        )
    return first


def describe(plan: Plan) -> str:
    """Say in a few words what is booked: ``gpu.mig 3g.40gb``, ``gpu.share, 25 units``."""
    device = plan.device
    units = device.get("units")
    if plan.choice.mig_profile is not None:
        return f"{device['class']} {plan.choice.mig_profile}"
    return device["class"] if units is None else f"{device['class']}, {units} units"


def device_request(
    plan: Plan, *, count: int, selector: "Sequence[Expression]"
) -> Mapping[str, Any]:
    """Return the request for so many pieces, each of which the selector has to match."""
    expressions = [*plan.device["selector"]]
    expressions += [
        {"key": each.key, "op": each.op, "values": list(each.values)} for each in selector
    ]
    return {
        **plan.device,
        "count": plan.device["count"] * count,
        "selector": {"matchExpressions": expressions},
    }


def _plan(client: "Client", ask: FractionalAsk, pool: "PoolView", field: str) -> Plan:
    answers = [(caps, _decide(ask, caps, pool, field)) for caps in _capabilities(client, ask, pool)]
    choices = [(caps, each) for caps, each in answers if isinstance(each, MechanismChoice)]
    if choices:
        caps, choice = min(choices, key=lambda pair: pair[1].allocated_fraction)
        return _in_terms_of(pool, caps, choice)
    refusal = next(each for _, each in answers if isinstance(each, Refusal))
    raise InvalidStateError(
        f"{pool.name}: {refusal.sentence}", field=field, details={"reason": refusal.code}
    )


def _capabilities(
    client: "Client", ask: FractionalAsk, pool: "PoolView"
) -> Sequence[ClusterGpuCaps]:
    """Read the pool's GPUs only where the answer hangs on them: there may be thousands."""
    by_board = ask.mig_profile is not None or (pool.sharing == "mig" and ask.gpus is None)
    if by_board or ask.memory is not None:
        return capabilities_of(client, pool)
    return [split_capabilities(pool)]


def _decide(
    ask: FractionalAsk, caps: ClusterGpuCaps, pool: "PoolView", field: str
) -> MechanismChoice | Refusal:
    try:
        return decide(ask, caps)
    except InvalidInputError as error:
        if error.field != "gpu_model":
            raise
        # GPUs that no catalogue knows and that report no memory: only their own shares are known.
        raise InvalidStateError(
            f"{pool.name}: what its {pool.gpu_model} GPUs have is not known",
            field=field,
            hint="Ask by --fraction, --slots or --gpus",
        ) from error


def _in_terms_of(pool: "PoolView", caps: ClusterGpuCaps, choice: MechanismChoice) -> Plan:
    if choice.mechanism is Mechanism.MIG:
        profile = {"key": "migProfile", "op": "In", "values": [choice.mig_profile]}
        device = {"class": "gpu.mig", "count": 1, "selector": [profile]}
        return Plan(choice=choice, device=device)
    if choice.mechanism is not Mechanism.WHOLE:
        return Plan(choice=choice, device=_parts(pool, choice.slots or 1, 1))
    count = int(choice.allocated_fraction)
    every = caps.slots_per_gpu or caps.shares_per_gpu
    if every is None:
        return Plan(choice=choice, device={"class": "gpu", "count": count, "selector": []})
    what = "slots" if caps.slots_per_gpu is not None else "shares"
    remark = f"every GPU of {pool.name} is split: a whole one is all of its {every} {what}"
    return Plan(choice=choice, device=_parts(pool, every, count), remark=remark)


def _parts(pool: "PoolView", units: int, count: int) -> Mapping[str, Any]:
    return {"class": part_class(pool), "count": count, "units": units, "selector": []}


def ask_of_flags(
    label: str, forms: Mapping[str, Any], *, isolation: str | None, allow_larger: bool
) -> FractionalAsk:
    """Read the ask; a refusal names the flag."""
    names = {"mig_profile": "--mig", "label": "--name"}
    names |= {form: f"--{form}" for form in ("fraction", "memory", "slots", "gpus", "isolation")}
    with naming(names):
        return FractionalAsk(
            label,
            forms["fraction"],
            mig_profile=forms["mig"],
            memory=forms["memory"],
            slots=forms["slots"],
            gpus=forms["gpus"],
            isolation=isolation,
            allow_larger=allow_larger,
        )
