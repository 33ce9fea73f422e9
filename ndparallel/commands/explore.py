"""Open a page on which every knob of the lessons can be turned: it shows at once what changes, and by which
command the same numbers come.

    ndparallel explore                start a server on this machine, and open the page in the browser
    ndparallel explore --no-browser   only say where the page is; Ctrl-C ends it

Limit  The server listens on 127.0.0.1 alone. It answers one question at a time; a search and the runs
       of "Predict first" have processes of their own.
"""

import argparse
import webbrowser

from ndparallel.base.errors import UserError
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import ASIDE, SCREENS, known
from ndparallel.explorer.server import Explorer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="of the server (default: a free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")


def run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port < 2**16:
        raise UserError(f"there is no port {arguments.port}: take 1024 to 65535, or leave --port out.")
    html, policy = page(known())
    with Explorer(html, policy, SCREENS, arguments.port, ASIDE) as server:
        print(f"The explorer is at {server.address}  Ctrl-C ends it.", flush=True)
        if not arguments.no_browser:
            webbrowser.open(server.address)
        server.serve_forever()
    return 0
