"""An OpenID Connect issuer on loopback: publishes its keys, signs tokens, counts who asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from peeklock.server.keys.jwt_keys import DISCOVERY

AUDIENCE = "https://servicebus.azure.net"
KEYS_PATH = "/keys"


class Issuer:
    """Serves while it is entered. `answers` may replace what a path is answered with."""

    def __init__(self, context: Any = None) -> None:
        """`context`: of TLS; None = plain HTTP."""
        self.requests: list[str] = []
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self._keys: dict[str, Any] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self.rotate("first")

    def __enter__(self) -> Issuer:
        # A short poll, or each stop takes half a second.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rotate(self, kid: str) -> None:
        """Have one new key, of this name, and no other."""
        self._keys = {kid: ec.generate_private_key(ec.SECP256R1())}

    def token(self, **claims: Any) -> str:
        """Sign claims with the newest key; `iss` and `aud` are there."""
        kid, key = list(self._keys.items())[-1]
        body = {"iss": self.url, "aud": AUDIENCE, **claims}
        return jwt.encode(body, key, algorithm="ES256", headers={"kid": kid})

    def jwks(self) -> dict[str, Any]:
        """Return the keys as they are published."""
        return {
            "keys": [
                {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
                for kid, key in self._keys.items()
            ]
        }

    def discovery(self) -> dict[str, Any]:
        """Return the discovery document."""
        return {"issuer": self.url, "jwks_uri": self.url + KEYS_PATH}

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        if handler.path in self.answers:
            self.answers[handler.path](handler)
        elif handler.path == DISCOVERY:
            respond(handler, 200, json.dumps(self.discovery()).encode())
        elif handler.path == KEYS_PATH:
            respond(handler, 200, json.dumps(self.jwks()).encode())
        else:
            respond(handler, 404, b"")


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Answer a request whole."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
