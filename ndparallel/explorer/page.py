"""The page in one piece: its style and its scripts stand inside, and nothing else may run in it.

Idea   The content security policy names the very style and scripts by their hashes: what is not this text
       does not run, and no request leaves for any other place.
"""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

SCRIPTS = (
    "draw.js",
    "saved.js",
    "state.js",
    "controls.js",
    "cut.js",
    "lanes.js",
    "timeline.js",
    "schedule.js",
    "ring.js",
    "cluster.js",
    "predict.js",
    "main.js",
)
STYLES = ("style.css",)
FRAMES = ["frame-ancestors 'none'"]  # a rule that only a server can set


@cache
def part(name: str) -> str:
    return (files("ndparallel.explorer") / "page" / name).read_text("utf-8")


def page(known: dict[str, Any], saved: str = "") -> tuple[str, str]:
    """Return the page, and the policy it is served with. `known` is what its scripts find as KNOWN; a page
    with `saved` answers inside asks nobody, and has its policy in itself."""
    style = "".join(map(part, STYLES))
    # "</" would end the script that it stands in
    data = json.dumps(known, allow_nan=False).replace("</", "<\\/")
    script = f'"use strict";\nconst KNOWN = {data};\n' + "".join(map(part, SCRIPTS))
    rules = policy(style, script)
    parts = {
        "/*style*/": style,
        "/*script*/": script,
        "<!--saved-->": data_block(rules, saved) if saved else "",
    }
    html = part("page.html")
    for mark, text in parts.items():
        html = html.replace(mark, text)
    return html, "; ".join(rules + FRAMES)


def data_block(rules: list[str], saved: str) -> str:
    """Return the policy of a page that nobody serves, and its answers."""
    alone = "; ".join(rule for rule in rules if not rule.startswith("connect-src"))
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{alone}">\n'
        f'<script type="application/octet-stream" id="saved">{saved}</script>'
    )


def policy(style: str, script: str) -> list[str]:
    """Return a content security policy that allows this style, this script, and this server."""
    return [
        "default-src 'none'",
        f"style-src '{sha256(style)}'",
        f"script-src '{sha256(script)}'",
        "connect-src 'self'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
