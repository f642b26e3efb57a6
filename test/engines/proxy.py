#!/usr/bin/env python3
"""Stands in front of an engine that speaks HTTP, and fails as it is told.

    python3 test/engines/proxy.py --upstream 127.0.0.1:8123 --port 8080 --control 8081
    curl -X PUT localhost:8081/plan -d '[{"action": "lost", "contains": "INSERT", "count": 2}]'

Options, plan and control port are those of sink.py, faults.py says what can
be planned.  Here `contains` and `lacks` look at the decoded query of the URL
and at the decoded body, `apply` lets the engine have the request before the
fault strikes, and "half" with `apply` cuts the engine's own answer.  Also:

    POST   /release    send what "later" and "duplicate" keep; answers their statuses
    DELETE /later      forget it

Requests are recorded without their bodies unless --bodies is given.  The
connection to the engine is a new one for each request: the proxy never sends
anything twice by itself.  An engine that is down shows as a reset.
"""

import http.client
import json
import os
import sys
import threading
import urllib.parse

TEST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TEST)

from sink import Connection, Control, Sink, arguments, decode, serve  # noqa: E402

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy(Sink):
    def __init__(self, args):
        host, _, port = args.upstream.rpartition(":")
        self.upstream = host, int(port)
        self.later = []
        super().__init__(args)

    def make_connection(self, peer, number):
        return Proxied(self, peer, number)

    def note(self, request, answer):
        super().note(request, answer)  # the last that is done with a request
        if not self.args.bodies:
            request["body"] = b""  # counted and recorded, no more needed

    def forward(self, request, body=None):
        """The engine's answer: (status, headers, body)."""
        body = request["body"] if body is None else body
        connection = http.client.HTTPConnection(*self.upstream)
        try:
            connection.putrequest(request["method"], request["path"], skip_host=True, skip_accept_encoding=True)
            for name, value in request["headers"].items():
                if name not in HOP_BY_HOP and name != "expect":
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Connection", "close")
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def put_aside(self, request, seconds):
        """For release(), or by itself after `seconds`."""
        kept = dict(request)
        if seconds:
            timer = threading.Timer(seconds, self._try, (kept,))
            timer.daemon = True
            timer.start()
        else:
            with self.lock:
                self.later.append(kept)

    def release(self):
        with self.lock:
            kept, self.later = self.later, []
        return [self._try(request) for request in kept]

    def _try(self, request):
        try:
            return self.forward(request)[0]
        except (OSError, http.client.HTTPException):
            return None


class Proxied(Connection):
    def _respond(self, request):
        fault = self._fault(request)
        request["applied"] = None  # the engine's status, if it was asked
        if fault is None:
            return self._relay(request, self._forward(request))
        request["fault"] = fault.action
        return self._misbehave(request, fault)

    def _fault(self, request):
        """The fault for this request; its body is decoded only if one asks for that."""
        plan = self.sink.plan.left()
        if not plan:
            return None
        body = request["body"]
        if any(f["contains"] or f["lacks"] or f["larger"] is not None for f in plan):
            try:
                body = decode(body, request["headers"].get("content-encoding"))
            except Exception:  # noqa: BLE001 - the engine is to say what is wrong with it
                pass
        query = urllib.parse.unquote_plus(request["path"]).encode()
        return self.sink.plan.take("answering", request["path"], len(body), query + b"\n" + body)

    def _misbehave(self, request, fault):
        if fault.action == "later":
            self.sink.put_aside(request, fault.seconds)
            self.sink.note(request, None)
            return False
        if fault.action == "corrupt":
            body = bytearray(request["body"])
            if body:
                body[fault.bytes or len(body) // 2] ^= 0xff
            return self._relay(request, self._forward(request, bytes(body)))
        if fault.action == "duplicate":
            answer = self._forward(request)
            self.sink.put_aside(request, fault.seconds)
            return self._relay(request, answer)
        if fault.action == "slow":
            return self._late(request, fault)
        if fault.apply or fault.action == "lost":
            answer = self._forward(request)
            if fault.action == "half":
                return self._half(request, answer)
        return self._fail(request, fault)

    def _forward(self, request, body=None):
        try:
            answer = self.sink.forward(request, body)
        except (OSError, http.client.HTTPException):
            self.sink.note(request, None)
            self.reset = True
            raise
        request["applied"] = answer[0]
        return answer

    def _late(self, request, fault):
        changed = self.sink.plan.changed
        if not fault.apply:
            changed.wait(fault.seconds)
        answer = self._forward(request)
        if fault.apply:
            changed.wait(fault.seconds)
        return self._relay(request, answer, fault.pause)

    def _relay(self, request, answer, pause=0):
        status, headers, body = answer
        self.sink.note(request, status)
        data = self._whole(answer)
        if not pause:
            self.socket.sendall(data)
        for i in range(len(data) if pause else 0):
            self.sink.plan.changed.wait(pause)
            self.socket.sendall(data[i:i + 1])
        return request["headers"].get("connection", "").lower() != "close"

    def _whole(self, answer):
        status, headers, body = answer
        kept = {name: value for name, value in headers if name.lower() not in HOP_BY_HOP}
        return self._head(status, kept, len(body)) + body

    def _half(self, request, answer):
        """Half of the engine's answer: of its body, or of its head if that has none."""
        self.sink.note(request, None)
        data = self._whole(answer)
        self.socket.sendall(data[:len(data) - (len(answer[2]) + 1) // 2] if answer[2] else data[:len(data) // 2])
        return False


class ProxyControl(Control):
    def _change(self):
        if (self.command, self.path) == ("POST", "/release"):
            return self._reply(200, json.dumps(self.sink.release()))
        if (self.command, self.path) == ("DELETE", "/later"):
            with self.sink.lock:
                self.sink.later.clear()
            return self._reply(200, "")
        return super()._change()


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--upstream", required=True, help="HOST:PORT of the engine")
    parser.add_argument("--bodies", action="store_true", help="keep the bodies of requests")
    serve(Proxy(parser.parse_args()), ProxyControl)


if __name__ == "__main__":
    main()
