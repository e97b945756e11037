"""A machine with a key of its own that says things to a server, rightly or wrongly."""

import json

import httpx2

from apportion.client.answers import error_of
from apportion.nodes.schemas import EnrollAnswer, NodeReport, NodeSpec, ReportAnswer
from apportion.signatures import (
    fingerprint,
    private_key,
    public_text,
    read_public,
    sign_request,
    verify_answer,
)
from apportion.testing.builders import MONDAY, gpu, inventory


class Machine:
    """A machine, before and after it has joined."""

    def __init__(self, name="m1", model="H100", *, seed=None, clock=lambda: MONDAY):
        self.name = name
        self.model = model
        self.clock = clock
        self.key = private_key((seed or name).encode().ljust(32, b"."))
        self.public = public_text(self.key.public_key())
        self.node_id = None
        self.server_key = None
        self.sequence = 0
        self.nonces = 0

    def headers(self, method, path, body, *, signer=None, created=None):
        self.nonces += 1
        return sign_request(
            self.key,
            signer or self.node_id or self.public,
            method,
            path,
            body,
            created=created or self.clock(),
            nonce=f"{self.name}-{self.nonces}",
        )

    def request(self, method, path, document=None, **how):
        body = None if document is None else json.dumps(document).encode()
        headers = self.headers(method, path, body, **how)
        if body is not None:
            headers["Content-Type"] = "application/json"
        return {"method": method, "url": path, "content": body, "headers": headers}

    def enrolling(self, token, **changes):
        return {
            "evidence": {"token": token},
            "public_key": self.public,
            "inventory": self.inventory(),
            **changes,
        }

    def inventory(self):
        document = inventory(self.name, gpu(self.model, 0, node=self.name), agent="test")
        return document.model_dump(mode="json", by_alias=True)

    def report(self, **changes):
        self.sequence += 1
        report = NodeReport.model_validate(
            {
                "sequence": self.sequence,
                "observed_generation": 1,
                "converged": {"devices": 1},
                "inventory": self.inventory(),
                **changes,
            }
        )
        return report.model_dump(mode="json", by_alias=True)

    def believe(self, answer, view, key=None):
        """Return what an answer holds; raises what was refused, or is not signed by the server."""
        if not answer.is_success:
            raise error_of(answer)
        key = key or self.server_key
        nonce = f"{self.name}-{self.nonces}"
        verify_answer(key, answer.status_code, answer.headers, answer.content, nonce=nonce)
        return view.model_validate(answer.json())

    def joined(self, answer, token):
        """Take an answer to joining: its key is the one that the token told of."""
        if not answer.is_success:
            raise error_of(answer)
        told = EnrollAnswer.model_validate(answer.json())
        key = read_public(told.server_key, field="server_key")
        assert fingerprint(key) == token.rpartition(".")[2]
        self.believe(answer, EnrollAnswer, key)
        self.server_key, self.node_id = key, told.node_id
        return told

    def join(self, client, token):
        """Join over the connection of the synchronous client."""
        http = client._connection._http
        answer = http.request(**self.request("POST", "/v1/join", self.enrolling(token)))
        return self.joined(answer, token)

    def say(self, client, **changes):
        """Report over the same connection that all is as the spec asks."""
        http = client._connection._http
        path = f"/v1/nodes/{self.node_id}"
        asked = http.request(**self.request("GET", f"{path}/spec"))
        spec = self.believe(asked, NodeSpec)
        done = dict.fromkeys(spec.units, spec.generation)
        report = self.report(observed_generation=spec.generation, converged=done, **changes)
        answer = http.request(**self.request("POST", f"{path}/report", report))
        return self.believe(answer, ReportAnswer)


class Line:
    """Carries a machine's requests to the application, without a token."""

    def __init__(self, http):
        self.http = http

    async def send(self, request):
        headers = {**request["headers"], "Authorization": ""}
        return await self.http.request(**{**request, "headers": headers})

    async def join(self, machine, token, **changes):
        asked = machine.request("POST", "/v1/join", machine.enrolling(token, **changes))
        return machine.joined(await self.send(asked), token)

    async def report(self, machine, **changes):
        asked = machine.request(
            "POST", f"/v1/nodes/{machine.node_id}/report", machine.report(**changes)
        )
        return machine.believe(await self.send(asked), ReportAnswer)

    async def spec(self, machine, **how):
        asked = machine.request("GET", f"/v1/nodes/{machine.node_id}/spec", **how)
        return machine.believe(await self.send(asked), NodeSpec)


def refusal_of(answer: httpx2.Response):
    return answer.status_code, answer.json()["code"]
