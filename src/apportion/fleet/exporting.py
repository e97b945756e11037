"""A server's fleet as a file: in one order, whole, so that it is the same when nothing changed."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import yaml

from apportion.fleet.schemas import API_VERSION
from apportion.fleet.there import PoolThere, There
from apportion.fleet.values import exact, granted_by

_HEADER: Final = """\
# A fleet of Apportion, as it was exported. It has no tokens and no secrets, and no machines: those
# come by inventory. `apportion fleet plan -f FILE` shows what differs from a server.
"""


def export(there: There) -> dict[str, Any]:
    """Return what is there as a fleet file has it; archived pools are no part of it."""
    below = sorted(there.tenants.keys() - {there.acting})
    return {
        "apiVersion": API_VERSION,
        "tenants": [
            {"id": each, "name": there.tenants[each].name, "parent": there.tenants[each].parent_id}
            for each in below
        ],
        "sites": [
            {"name": name, "tenant": tenant, "region": site.region, "kind": site.kind}
            for (tenant, name), site in sorted(there.sites.items())
        ],
        "pools": [
            _pool(name, tenant, pool)
            for (tenant, name), pool in sorted(there.living_pools().items())
        ],
        "policies": [
            {
                "name": name,
                "tenant": tenant,
                "description": policy.description,
                "text": policy.text,
            }
            for (tenant, name), policy in sorted(there.policies.items())
        ],
    }


def to_yaml(fleet: Mapping[str, Any]) -> str:
    """Write a fleet as YAML, texts of several lines as such."""
    text = yaml.dump(
        fleet, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, line_break="\n"
    )
    return _HEADER + text


def _pool(name: str, tenant: str, pool: PoolThere) -> dict[str, Any]:
    view = pool.view
    told = {
        "name": name,
        "tenant": tenant,
        "site": pool.site,
        "class": view.class_,
        "gpu_model": view.gpu_model,
        "sharing": view.sharing,
        "agent": view.agent,
        "provider_account_id": view.provider_account_id,
        "policy": _sorted(exact(view.policy)),
        "owner_quota": granted_by(view.quotas),
        "offers": {
            other: {
                "quota": granted_by(offer.quotas),
                "priority": offer.priority,
                "include_descendants": offer.include_descendants,
            }
            for other, offer in sorted(pool.offers.items())
        },
    }
    return {field: value for field, value in told.items() if value is not None}


def _sorted(value: Any) -> Any:
    """Order the fields of a policy: the server keeps them in no order of a person's."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list):
        return [_sorted(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


class _Dumper(yaml.SafeDumper):
    """Writes what the reader of fleet files reads as the same value."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's
        """Repeat what is equal: a person changes one of two."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    block = "|" if "\n" in text and text == text.strip(" ") else None
    style = block or ('"' if _reads_as_other(text) else None)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType] - PyYAML's


def _write_number(dumper: yaml.SafeDumper, number: Decimal) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", f"{number:f}")  # pyright: ignore[reportUnknownMemberType] - PyYAML's


def _reads_as_other(text: str) -> bool:
    """Tell whether the reader would take a plain text for a number: it knows more of them."""
    try:
        Decimal(text)
    except ArithmeticError:
        return False
    return True


_Dumper.add_representer(str, _write_text)
_Dumper.add_representer(Decimal, _write_number)
