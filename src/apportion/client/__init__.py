"""The typed client: one method an operation of the API, the server's own schemas, and its errors.

    with Client.from_environment() as client:
        for pool in client.list_pools(sharing="mig").all():
            ...

Every method raises what the server raised: NotFoundError, ConflictError, QuotaExceededError and so
on, with field, given, allowed, hint and details; UnavailableError when no server answers.
"""

from apportion.client.client import Client
from apportion.client.page import Page

__all__ = ["Client", "Page"]
