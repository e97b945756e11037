"""A receiver of webhooks: a real HTTP server of this machine that answers as a test says."""

import base64
import hashlib
import hmac
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network

LOCAL = [ip_network("127.0.0.0/8")]
"""What a dispatcher must be allowed to reach such a receiver."""


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self):
        return json.loads(self.body)

    def is_signed_with(self, secret):
        """Verify as the Standard Webhooks specification says, by other code than the sender's."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        stamp = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}."
        digest = hmac.new(key, stamp.encode() + self.body, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


class Receiver(ThreadingHTTPServer):
    """Answers with ``answers`` in turn, a status or a function of the handler; then with 204."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.answers = []
        self.connections = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/hook?for=test"

    @property
    def subjects(self):
        return [each.event["subject"] for each in self.received]

    def get_request(self):
        self.connections += 1
        return super().get_request()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with server.lock:
            server.received.append(Received(self.path, headers, body))
            answer = server.answers.pop(0) if server.answers else 204
        if callable(answer):
            answer(self)
            return
        self.answer(answer)

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def receiving():
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()
