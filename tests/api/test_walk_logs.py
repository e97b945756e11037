"""The log of a server with nodes: what they say all the time does not bury the rest."""

import json

import pytest
from trust_machine import Line, Machine

from apportion.server.logs import configure_logging
from apportion.testing.builders import pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("log_as_before")]


async def test_what_nodes_say_all_the_time_is_told_only_where_it_is_refused(
    http, with_client, clock, capsys
):
    line, machine = Line(http), Machine(clock=clock)
    pool = await with_client(lambda client: client.create_pool(pool_of("H100", name="p")))
    issued = await with_client(lambda client: client.create_join_token(pool.id, {"name": "m"}))
    configure_logging("debug", "json")
    await line.join(machine, issued.token)
    await line.report(machine)
    await line.spec(machine)
    path = f"/v1/nodes/{machine.node_id}/report"
    good = machine.request("POST", path, machine.report())
    await line.send({**good, "content": good["content"] + b" "})
    told = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    requests = [each for each in told if each["logger"] == "apportion.server.requests"]
    assert [(each["status"], each["level"]) for each in requests] == [
        (200, "info"),
        (200, "debug"),
        (200, "debug"),
        (401, "info"),
    ]
