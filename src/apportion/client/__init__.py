"""The typed client: one method an operation of the API, the server's own schemas, and its errors.

    with Client.from_environment() as client:
        for pool in client.list_pools(sharing="mig").all():
            ...

    async with AsyncClient.from_environment() as client:
        async for pool in client.list_pools(sharing="mig").all():
            ...

Every method raises what the server raised: NotFoundError, ConflictError, QuotaExceededError and so
on, with field, given, allowed, hint and details; UnavailableError when no server answers.
"""

from apportion.client.aio.client import AsyncClient
from apportion.client.aio.page import AsyncListing, AsyncPage
from apportion.client.batches import Batch
from apportion.client.sync.client import Client
from apportion.client.sync.page import Page

__all__ = ["AsyncClient", "AsyncListing", "AsyncPage", "Batch", "Client", "Page"]
