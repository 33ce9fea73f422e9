"""Open a page on which every option of the lessons can be changed: it shows at once what follows, and
by which command the same numbers come.

    ndparallel explore                start a server here, and open the page in the browser
    ndparallel explore --no-browser   only say where the page is; Ctrl-C ends it

    ndparallel explore --save FILE    write the page with some hundred answers, for no server

Limit  The server listens on 127.0.0.1 alone. It answers one question at a time; a search and the runs
       of "Predict first" have processes of their own.
"""

import argparse
import webbrowser
from pathlib import Path

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.explorer.beginnings import chapters
from ndparallel.explorer.documents import documents
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import ASIDE, SCREENS, known
from ndparallel.explorer.server import Explorer
from ndparallel.results.progress import counted, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="the server's port (default: a free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write the page with its answers inside, and end"
    )


def run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port < 2**16:
        raise UserError(f"there is no port {arguments.port}: take 1024 to 65535, or leave --port out.")
    if arguments.save:
        return save(arguments.save)
    with server_on(arguments.port) as server:
        print(f"The explorer is at {server.address}  Ctrl-C ends it.", flush=True)
        if not arguments.no_browser:
            webbrowser.open(server.address)
        server.serve_forever()
    return 0


def server_on(port: int) -> Explorer:
    """Return the server. Raises UserError for a port that is in use, or is the system's."""
    readable = documents()
    html, policy = page(known() | {"chapters": [name for name in chapters() if name in readable]})
    try:
        return Explorer(html, policy, SCREENS, port, ASIDE, readable)
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used: {(error.strerror or str(error)).lower()}; take another, or leave "
            "--port out."
        ) from None


def save(path: Path) -> int:
    """Write the page with its answers inside."""
    from ndparallel.explorer.saving import saved_page

    check_writable(path)
    with progress() as announce:
        html = saved_page(lambda asked: counted(asked, announce, lambda _: "a question of the page"))
    write_atomically(path, html)
    print(f"{path}: {si(len(html), 'B')}. It needs no server and no network: open it in a browser.")
    return 0
