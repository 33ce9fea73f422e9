"""How long the page of `ndparallel explore` takes to answer in a browser: from a new set-up to the new page.

Idea   Every set-up is a new one, so that nothing is known from before. The time is the browser's own, with
       the question's way to Python and back, and the drawing: until all that can be seen is there, and until
       the last picture below it is.
Limit  What else the machine does is in the times: look at the fastest, and at the median.

Run    python benchmarks/explorer.py        (needs the extra `browser`, and a chromium)
       python benchmarks/explorer.py 1      beside so many processes that never rest
"""

import argparse
import shutil
import threading
from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import Any

from busy import busy

from ndparallel.base.errors import UserError, guarded
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import ASIDE, SCREENS, known
from ndparallel.explorer.server import Explorer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TARGETS = {"cluster": 100, "cut": 300, "timeline": 300, "ring": 100, "schedule": 100}  # ms
TIMED = """async (hash) => {
    history.replaceState(null, "", hash);
    const start = performance.now();
    await show();
    document.body.offsetHeight; // laid out, too
    const seen = performance.now() - start;
    while (document.querySelector(".later")) await new Promise(requestAnimationFrame);
    return [seen, performance.now() - start];
}"""


def addresses(screen: str) -> Iterator[str]:
    """Yield set-ups of a screen, each once."""
    match screen:
        case "cluster":
            yield from (
                f"tp={tp}&pp={pp}&zero={zero}" for tp, pp, zero in product((2, 4, 8), (2, 4, 8), (0, 1))
            )
        case "cut" | "timeline":
            yield from (f"tp={tp}&zero={zero}" for tp, zero in product((2, 4), (0, 1, 2, 3)))
        case "ring":
            yield from (
                f"ranks={ranks}&bytes={size}" for ranks, size in product((4, 8), ("1e4", "1e6", "1e8"))
            )
        case "schedule":
            yield from (f"stages={p}&microbatches={m}" for p, m in product((2, 4, 8), (4, 8, 16)))


def milliseconds(tab: Any, screen: str) -> list[list[float]]:
    """Return for every set-up when it can be seen, and when all of it is drawn."""
    tab.evaluate(TIMED, f"#{screen}")  # what is loaded once
    return [tab.evaluate(TIMED, f"#{screen}?{words}") for words in addresses(screen)]


def sync_playwright() -> Any:
    """Playwright's driver. Raises UserError where it is not installed."""
    try:
        from playwright import sync_api
    except ModuleNotFoundError:
        raise UserError(
            "Playwright is not installed: install it with pip install -e '.[browser]', and a chromium."
        ) from None
    return sync_api.sync_playwright()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("beside", type=int, nargs="?", default=0, help="processes that never rest")
    beside = parser.parse_args().beside
    with sync_playwright() as driver, Explorer(*page(known()), SCREENS, aside=ASIDE) as server, busy(beside):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for screen, target in TARGETS.items():
            tab = browser.new_page()  # with nothing answered before
            tab.goto(server.address)
            tab.wait_for_selector("#screen:not(.busy) > *")
            seen, whole = zip(*milliseconds(tab, screen))
            print(
                f"{screen:<9} {len(seen):>2} answers: fastest {min(seen):.0f}, median {median(seen):.0f} "
                f"(wanted {target} ms), slowest {max(seen):.0f} ms; all drawn {median(whole):.0f} ms"
            )
            tab.close()
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    raise SystemExit(guarded(main))
