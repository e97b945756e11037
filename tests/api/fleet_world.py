"""Fleet files against the application on a real database, from a thread of their own."""

from collections.abc import Callable

import httpx2

from apportion.client import Client
from apportion.fleet.service import (
    Plan,
    Server,
    apply_plan,
    export_fleet,
    plan_fleet,
    read_fleet,
    to_yaml,
)
from in_loop import BASE, InLoop

FLEET = """\
apiVersion: apportion/v1
tenants:
  - {id: acme-vision, name: Vision, parent: acme}
  - {id: acme, name: Acme Inc.}
sites:
  - {name: fra1, region: eu-central}
  - {name: basement, tenant: acme, region: eu-west}
pools:
  - name: h100
    site: fra1
    gpu_model: H100
    policy: {maxPending: 6h, acceptance: [{kind: diag.nvml}], overcommit: {vcpu: 1.5}}
    owner_quota: {gpu: 2147483647, vcpu: 2.5}
    offers:
      acme: {quota: {gpu: 32, gpuEquivalents: 7/2}, priority: 10, include_descendants: true}
  - name: cut
    tenant: acme
    site: basement
    gpu_model: A100
    sharing: mig
    owner_quota: {gpu.mig: unlimited}
    offers:
      acme-vision: {quota: {gpu.mig: 8}}
  - {name: slots, site: fra1, gpu_model: L4, sharing: mps, policy: {replicas: 4}}
policies:
  - name: at-most-8
    tenant: acme
    description: No big asks.
    text: |
      forbid (principal, action == Action::"compute:reservations:create", resource)
      when { context.gpuCount > 8 };
"""


class World:
    """A server, and what the verbs do with a file against it."""

    def __init__(self, connect: Callable[[str | None], Client]) -> None:
        self.connect = connect

    def plan(self, text: str, *, prune: bool = False) -> Plan:
        with Server(self.connect) as server:
            return plan_fleet(read_fleet(text, "fleet.yaml"), server, prune=prune)[0]

    def apply(self, text: str, *, prune: bool = False) -> Plan:
        with Server(self.connect) as server:
            plan, there = plan_fleet(read_fleet(text, "fleet.yaml"), server, prune=prune)
            apply_plan(plan, there, server, told=lambda *_: None)
        return plan

    def export(self) -> str:
        with Server(self.connect) as server:
            return to_yaml(export_fleet(server))


def world(app, token, transport: Callable[[], httpx2.BaseTransport] | None = None) -> World:
    """Give a world; ``transport`` makes what carries the requests of each client."""
    make = transport or (lambda: InLoop(app))
    return World(lambda tenant: Client(BASE, token, tenant=tenant, transport=make()))


def titles(plan: Plan) -> list[str]:
    """Give the steps of a plan in short: what, whose, which, to whom."""
    return [
        " ".join(
            (step.action, step.kind, f"{step.tenant}/{step.name}", *([step.to] if step.to else []))
        )
        for step in plan.steps
    ]
