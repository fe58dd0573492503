"""A receiver of webhooks that shares nothing with the sink: writes each request down before it answers.

Arguments: port (0 for any), file. Ends when its standard input does.
"""

import base64
import http.server
import json
import os
import random
import sys
import threading

MOST = 1 << 20
LOGIN = "Basic " + base64.b64encode(b"suite:right").decode()
journal = open(sys.argv[2], "ab", buffering=0)
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        if length > MOST:
            # Before the body has been read, as most servers do.
            self.close_connection = True
            self.answer(413)
            self.rfile.read(length)
            return
        body = self.rfile.read(length)
        if self.headers["Authorization"] != LOGIN:
            self.answer(401)
            return
        seen = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}
        seen["body"] = base64.b64encode(body).decode()
        with lock:
            journal.write(json.dumps(seen).encode() + b"\n")
        self.answer(200)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512

    def handle_error(self, *_):
        pass


def end_with_the_test():
    sys.stdin.read()
    os._exit(0)


def listen(port):
    # Below the ports that the system gives to clients: one that tries again and again to reach a receiver that was killed
    # could be given this port, and keep the receiver out.
    while True:
        try:
            return Server(("127.0.0.1", port or random.randrange(12_000, 32_000)), Handler)
        except OSError:
            if port:
                raise


server = listen(int(sys.argv[1]))
print(server.server_port, flush=True)
threading.Thread(target=end_with_the_test, daemon=True).start()
server.serve_forever()
