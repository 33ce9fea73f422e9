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
    "state.js",
    "knobs.js",
    "cut.js",
    "timeline.js",
    "schedule.js",
    "ring.js",
    "cluster.js",
    "predict.js",
    "main.js",
)
STYLES = ("style.css",)


@cache
def part(name: str) -> str:
    return (files("ndparallel.explorer") / "page" / name).read_text("utf-8")


def page(known: dict[str, Any]) -> tuple[str, str]:
    """Return the page, and the policy it is served with. `known` is what its scripts find as KNOWN."""
    style = "".join(map(part, STYLES))
    # "</" would end the script that it stands in
    data = json.dumps(known, allow_nan=False).replace("</", "<\\/")
    script = f'"use strict";\nconst KNOWN = {data};\n' + "".join(map(part, SCRIPTS))
    html = part("page.html").replace("/*style*/", style).replace("/*script*/", script)
    return html, policy(style, script)


def policy(style: str, script: str) -> str:
    """Return a content security policy that allows this style, this script, and this server."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src '{sha256(style)}'",
            f"script-src '{sha256(script)}'",
            "connect-src 'self'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
