"""What schemathesis is told before each case: not to take away its own token, nor wait for ever."""

import os
from typing import Any

import schemathesis

OWN_TOKEN_ID = os.environ["CONTRACT_TOKEN_ID"]
NOBODYS = "tok_01kzzzzzzzzzzzzzzzzzzzzzzz"


@schemathesis.hook  # pyright: ignore[reportUnknownMemberType] - untyped there
def map_case(
    context: schemathesis.HookContext, case: schemathesis.Case[Any]
) -> schemathesis.Case[Any]:
    """Point what would rotate or revoke the token of the run at one that does not exist."""
    del context
    parameters = case.path_parameters or {}
    if parameters.get("token_id") == OWN_TOKEN_ID and case.method in ("POST", "DELETE"):
        parameters["token_id"] = NOBODYS
    if case.path.endswith("/events/stream"):
        case.query.setdefault("until", "now")  # else it waits for what happens next
    return case
