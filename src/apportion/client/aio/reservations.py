"""Reservations, and the usage that they leave."""

from collections.abc import Sequence
from datetime import datetime

from apportion.client.aio.asking import AsyncAsking
from apportion.client.aio.page import AsyncListing
from apportion.client.batches import Batch, batch_of
from apportion.client.requests import Document, Query, body_of, instant_of, keyed, path_of
from apportion.metering.schemas import UsageView
from apportion.pools.schemas import QuotaResource
from apportion.reservations.schemas import (
    Defragmentation,
    Defragmented,
    PoolCapacity,
    QuotaExplained,
    ReservationAsk,
    ReservationCreate,
    ReservationExplained,
    ReservationUpdate,
    ReservationView,
    State,
)
from apportion.reservations.window_schemas import (
    FreeWindows,
    FreeWindowsAsk,
    GpuCalendar,
    Outlook,
    SeriesCreate,
    SeriesSummary,
    SeriesView,
)


class AsyncReservations(AsyncAsking):
    """What the API offers about reservations."""

    async def create_reservation(self, request: ReservationCreate | Document) -> ReservationView:
        """Reserve; what has no room waits."""
        path = path_of("reservations")
        return await self._send("POST", path, ReservationView, keyed(request))

    async def create_reservations(self, requests: Sequence[ReservationCreate | Document]) -> Batch:
        """Reserve up to 500 at once; each stands alone, with its own answer or error."""
        body = {"reservations": [keyed(each) for each in requests]}
        path = path_of("reservations", "batch")
        return batch_of(await self._connection.ask("POST", path, body=body))

    async def find_earliest(self, request: ReservationAsk | Document) -> Outlook:
        """Tell when an ask could start in each of its pools, or why never; nothing is held."""
        path = path_of("reservations", "earliest")
        return await self._send("POST", path, Outlook, body_of(request))

    async def find_free_windows(self, request: FreeWindowsAsk | Document) -> FreeWindows:
        """Tell the next ``k`` windows in which an ask has room; nothing is held."""
        path = path_of("reservations", "free-windows")
        return await self._send("POST", path, FreeWindows, body_of(request))

    async def get_pool_capacity(self, pool_id: str, *, duration: str | None = None) -> PoolCapacity:
        """Tell what of a pool is free from now on for a duration, and the largest that fits."""
        path = path_of("pools", pool_id, "capacity")
        return await self._send("GET", path, PoolCapacity, query={"duration": duration})

    def list_reservations(
        self,
        *,
        pool_id: str | None = None,
        states: Sequence[State] | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[ReservationView]:
        """List reservations, newest first."""
        query: Query = {
            "pool_id": pool_id,
            "state": None if states is None else list(states),
            "name": name,
            "limit": limit,
        }
        return self._list(path_of("reservations"), ReservationView, query, cursor)

    async def get_reservation(self, reservation_id: str) -> ReservationView:
        """Show a reservation and what it has."""
        return await self._send("GET", path_of("reservations", reservation_id), ReservationView)

    async def explain_reservation(self, reservation_id: str) -> ReservationExplained:
        """Say why a reservation waits, what would make it fit, and what it waited for before."""
        path = path_of("reservations", reservation_id, "explain")
        return await self._send("GET", path, ReservationExplained)

    async def update_reservation(
        self, reservation_id: str, request: ReservationUpdate | Document
    ) -> ReservationView:
        """Let a reservation end later or sooner: an ``end``, or a ``duration`` from its start."""
        path = path_of("reservations", reservation_id)
        return await self._send("PATCH", path, ReservationView, body_of(request))

    async def release_reservation(self, reservation_id: str) -> ReservationView:
        """End a reservation now, or cancel it."""
        path = path_of("reservations", reservation_id, "release")
        return await self._send("POST", path, ReservationView)

    async def defragment_pool(
        self, pool_id: str, request: Defragmentation | Document
    ) -> Defragmented:
        """Plan the fewest moves that make room in a pool, or make them."""
        path = path_of("pools", pool_id, "defragmentation")
        return await self._send("POST", path, Defragmented, body_of(request))

    async def create_series(self, request: SeriesCreate | Document) -> SeriesView:
        """Reserve every window of a recurrence, all or none."""
        return await self._send("POST", path_of("series"), SeriesView, keyed(request))

    def list_series(
        self,
        *,
        name: str | None = None,
        live: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[SeriesSummary]:
        """List series, newest first; ``live``: those of which something has not ended."""
        query: Query = {"name": name, "live": live, "limit": limit}
        return self._list(path_of("series"), SeriesSummary, query, cursor)

    async def get_series(
        self, series_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> SeriesView:
        """Show a series and its reservations, by start, in pages."""
        query: Query = {"limit": limit, "cursor": cursor}
        return await self._send("GET", path_of("series", series_id), SeriesView, query=query)

    async def release_series(self, series_id: str) -> SeriesView:
        """End what of a series lives, and cancel what is still to come."""
        return await self._send("POST", path_of("series", series_id, "release"), SeriesView)

    async def explain_quota(
        self,
        pool_id: str,
        tenant_id: str,
        resource: QuotaResource,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> QuotaExplained:
        """Show a quota and which live reservations use it, in pages."""
        path = path_of("pools", pool_id, "quotas", tenant_id, resource, "explain")
        return await self._send(
            "GET", path, QuotaExplained, query={"limit": limit, "cursor": cursor}
        )

    async def get_gpu_calendar(
        self,
        gpu_id: str,
        *,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
    ) -> GpuCalendar:
        """Show which units of a GPU are held when: now and 24 hours on, where not said otherwise.

        An answer whose end is sooner than asked for goes on from there.
        """
        query = {"start": instant_of(start), "end": instant_of(end)}
        path = path_of("gpus", gpu_id, "calendar")
        return await self._send("GET", path, GpuCalendar, query=query)

    async def get_usage(
        self, start: datetime | str, end: datetime | str | None = None
    ) -> UsageView:
        """Return exact GPU hours within [start, end); till now without an end."""
        query = {"start": instant_of(start), "end": instant_of(end)}
        return await self._send("GET", path_of("usage"), UsageView, query=query)
