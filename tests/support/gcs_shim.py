"""Makes fake-gcs-server speak the part of Google's XML API that our client uses.

obstore uploads with an XML PUT and `x-goog-if-generation-match`. fake-gcs-server honours a generation match
only in the JSON API's multipart upload, so the shim turns the one into the other, and the answer back.
Everything else passes through, with the Host header changed because the server routes by it.

It also asks for a token on the XML side, as Google does and the fake does not: without that no test could
show what wrong credentials lead to.
"""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote, unquote

from tests.support.http1 import Message
from tests.support.proxy import Proxy, run_until_killed

TOKEN = "casque-test-token"  # opens a fake on loopback

_BOUNDARY = "casque-shim-boundary"
_JSON_PATHS = ("/storage/", "/upload/", "/download/", "/batch/", "/resumable/", "/_internal/", "/b/", "/b?")


class GcsShim(Proxy):
    """A proxy that translates uploads."""

    def refuse(self, request: Message) -> bytes | None:
        if _is_json(request) or request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        return _answer(401, "Unauthorized", b"<Error><Code>AuthenticationRequired</Code></Error>")

    def to_server(self, request: Message) -> bytes:
        if request.method == "PUT" and not _is_json(request):
            return self._upload(request)
        lines = request.raw[: request.head_end - 4].decode("latin-1").split("\r\n")
        kept = [line for line in lines if not line.lower().startswith("host:")]
        return "\r\n".join([*kept, self._host, "", ""]).encode("latin-1") + request.raw[request.head_end :]

    def to_client(self, request: Message, answer: Message) -> bytes:
        if request.method == "PUT" and not _is_json(request) and answer.status == 200:
            made = json.loads(answer.body)
            headers = f'ETag: "{made["etag"]}"\r\nx-goog-generation: {made["generation"]}\r\n'
            return _answer(200, "OK", b"", headers)
        if answer.status == 500 and b"no bucket named" in answer.raw:
            return _answer(404, "Not Found", b"<Error><Code>NoSuchBucket</Code></Error>")
        return answer.raw

    @property
    def _host(self) -> str:
        return f"Host: {self.upstream[0]}:{self.upstream[1]}"

    def _upload(self, request: Message) -> bytes:
        bucket, _, name = request.target.partition("?")[0].lstrip("/").partition("/")
        match = request.headers.get("x-goog-if-generation-match")
        condition = "" if match is None else f"&ifGenerationMatch={quote(match)}"
        about = json.dumps({"name": unquote(name)})
        body = (
            f"--{_BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{about}\r\n"
            f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode() + request.body
        body += f"\r\n--{_BOUNDARY}--\r\n".encode()
        head = (
            f"POST /upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition} HTTP/1.1\r\n"
            f"{self._host}\r\nContent-Type: multipart/related; boundary={_BOUNDARY}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _is_json(request: Message) -> bool:
    return request.target.startswith(_JSON_PATHS)


def _answer(status: int, reason: str, body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} {reason}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.support.gcs_shim")
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    run_until_killed(GcsShim(args.upstream, port=args.port))


if __name__ == "__main__":
    main()
