"""What was asked for, as a request again, and the command that asks for it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from apportion.quantities.shares import exact_text
from apportion.quantities.windows import format_duration, format_instant
from apportion.reservations.admission import Draft

Body = Mapping[str, Any]
"""The body of a request, as it goes into the API."""

_OPERATORS: Final = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}"}
_OTHERS: Final = {"DoesNotExist": "!{}", "Gt": "{}>{}", "Lt": "{}<{}"}


def body_of(draft: Draft) -> dict[str, Any]:
    """Return the request that a draft was admitted from; what it left out is left out."""
    window = {
        "start": draft.asked_start,
        "end": draft.asked_end,
        "end_before": draft.end_before,
    }
    # Whether members lie apart is kept beside the rest that is said of places.
    placement = {key: each for key, each in draft.placement.items() if key != "members_apart"}
    if draft.policy == "exact":
        # Only a batch is planned so; by itself it is placed by the default.
        del placement["policy"]
    gang = {"members": draft.members, "apart": draft.members_apart}
    host = {
        "vcpu": exact_text(Fraction(draft.ask.vcpu_milli, 1000)),
        "memoryGiB": exact_text(Fraction(draft.ask.memory_mib, 1024), 10),
    }
    return {
        **({} if draft.name is None else {"name": draft.name}),
        "pool_ids": list(draft.candidates),
        "devices": list(draft.devices),
        **({"resources": host} if draft.ask.vcpu_milli or draft.ask.memory_mib else {}),
        **({"placement": placement} if placement else {}),
        **({"gang": gang} if draft.members > 1 else {}),
        **({"open_ended": True} if draft.open_ended else {}),
        **({} if draft.duration is None else {"duration": format_duration(draft.duration)}),
        **{key: format_instant(at) for key, at in window.items() if at is not None},
    }


def command_of(body: Body) -> str | None:
    """Return the command that makes a request; None for one that no flags of it say."""
    ask = _ask_flags(body["devices"])
    if ask is None:
        return None
    flags = [*_flags({"--pool": ",".join(body["pool_ids"])}), *ask]
    resources, placement = body.get("resources", {}), body.get("placement", {})
    host = {"--vcpu": "vcpu", "--host-memory-gib": "memoryGiB"}
    flags += _flags(
        {flag: resources[key] for flag, key in host.items() if resources.get(key, "0") != "0"}
    )
    places = {"--policy": placement.get("policy"), "--together": placement.get("together")}
    flags += _flags({flag: value for flag, value in places.items() if value is not None})
    flags += ["--apart"] if placement.get("apart") else []
    gang = body.get("gang", {})
    flags += ["--gang", str(gang["members"])] if gang else []
    flags += ["--gang-apart"] if gang.get("apart") else []
    slack = body.get("end_before") is not None
    window = {
        "--after" if slack else "--from": body.get("start"),
        "--for": body.get("duration"),
        "--until": body.get("end"),
        "--before": body.get("end_before"),
        "--name": body.get("name"),
    }
    flags += _flags({flag: value for flag, value in window.items() if value is not None})
    flags += ["--open-ended"] if body.get("open_ended") else []
    return shlex.join(["apportion", "reserve", *flags])


def _flags(given: Mapping[str, Any]) -> Iterator[str]:
    for flag, value in given.items():
        yield flag
        yield str(value)


def _ask_flags(devices: Sequence[Mapping[str, Any]]) -> list[str] | None:
    if not devices:
        return []
    if len(devices) > 1:
        return None
    [device] = devices
    conditions = list(device.get("selector", {}).get("matchExpressions", ()))
    form = _form(device, conditions)
    if form is None:
        return None
    select = ",".join(map(_condition, conditions))
    return [*form, *(["--select", select] if select else [])]


def _form(device: Mapping[str, Any], conditions: list[Mapping[str, Any]]) -> list[str] | None:
    """Return the flags of the form of an ask; takes a profile out of the conditions."""
    count, units = device["count"], device.get("units", 1)
    pieces = ["--count", str(count)] if count > 1 else []
    match device["class"]:
        case "gpu":
            return ["--gpus", str(count)]
        case "gpu.slot":
            return ["--slots", str(units), *pieces]
        case "gpu.share":
            return ["--fraction", exact_text(Fraction(units, 100)), *pieces]
        case _:
            named = [each for each in conditions if each["key"] == "migProfile"]
            if len(named) != 1 or named[0]["op"] != "In" or len(named[0]["values"]) != 1:
                return None
            conditions.remove(named[0])
            return ["--mig", named[0]["values"][0], *pieces]


def _condition(each: Mapping[str, Any]) -> str:
    values = ",".join(map(str, each.get("values", ())))
    return {**_OPERATORS, **_OTHERS}[each["op"]].format(each["key"], values)
