#!/opt/metaq/bin/python
"""The health check of the image: /readyz of a broker, or the port of a name server.

    healthy                asks the broker's /readyz, at the port of METAQ_METRICS_LISTEN
    healthy --port PORT    connects to a port; a name server has no HTTP pages

It prints the answer, and exits with 0 if the role is ready.
"""

import os
import socket
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4


def ask_readiness(port: str) -> tuple[bool, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=TIMEOUT_S) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()


def connect(port: str) -> tuple[bool, str]:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=TIMEOUT_S):
        return True, f"port {port} is open\n"


def main() -> int:
    try:
        if sys.argv[1:2] == ["--port"]:
            is_ready, text = connect(sys.argv[2])
        else:
            listen = os.environ.get("METAQ_METRICS_LISTEN", "127.0.0.1:5557")
            is_ready, text = ask_readiness(listen.rpartition(":")[2])
    except OSError as error:
        is_ready, text = False, f"{error}\n"
    print(text, end="")
    return 0 if is_ready else 1


if __name__ == "__main__":
    sys.exit(main())
