"""A real server on a real socket: what an application in the same process cannot show."""

import socket

import httpx2
import pytest

from api_server import served
from apportion.client import Client
from apportion.errors import UnavailableError
from apportion.server.launch import _listen
from apportion.testing.builders import ask, device, gpu, inventory, pool_of


def test_a_reservation_over_a_socket(dsn):
    with served(dsn) as there, Client(there.url, there.token) as client:
        assert (client.get_health(), client.get_readiness()) == ("ok", "ready")
        pool = client.create_pool(pool_of("H100", "mps", shares=100))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0)))
        made = client.create_reservation(ask(pool.id, device("gpu.share", units=81), duration="1h"))
        assert [str(each.share) for each in made.bookings] == ["81/100"]
        assert client.get_reservation(made.id).bookings == made.bookings


def test_answers_do_not_wait_for_the_callers_receipt():
    with (
        _listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_body_that_is_too_large_is_refused_while_it_is_sent(dsn):
    with served(dsn) as there, httpx2.Client(base_url=there.url) as http:
        headers = {"Authorization": f"Bearer {there.token}", "Content-Type": "application/json"}
        response = http.post("/v1/pools", content=b" " * (17 * 2**20), headers=headers)
        assert (response.status_code, response.json()["field"]) == (413, "body")
        assert http.get("/healthz").status_code == 200


def test_what_is_no_http_at_all_does_not_harm_the_server(dsn):
    with served(dsn) as there:
        host, port = there.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"\x16\x03\x01\x00\xff rubbish\r\n\r\n")
            assert b"400" in raw.recv(100)
        with Client(there.url, there.token) as client:
            assert client.get_health() == "ok"


def test_a_caller_that_leaves_halfway_leaves_nothing_behind(dsn):
    with served(dsn) as there:
        host, port = there.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(
                b"POST /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer " + there.token.encode() + b"\r\n"
                b'Content-Length: 1000\r\n\r\n{"name": "half"'
            )
        with Client(there.url, there.token) as client:
            assert client.list_pools().items == []


def test_where_nothing_listens_the_client_says_how_to_start_a_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}", "apt_x") as client,
        pytest.raises(UnavailableError, match="no server answers"),
    ):
        client.list_pools()
