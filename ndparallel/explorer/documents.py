"""The documents beside the explorer as pages: README, the book, its pictures, the lessons' files.

Idea   All that can be asked for is read before anybody asks: a request names a document, and never a file.
       Markdown becomes HTML when it is first looked at, by the parser that rich brings along.
Limit  A link to anything else that lies beside them is shown as its words alone.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from html import escape
from typing import NamedTuple

from ndparallel.explorer.page import part, sha256
from ndparallel.lessons.registry import LESSONS, ROOT, file_of

KINDS = {".md": "text/html", ".svg": "image/svg+xml", ".py": "text/plain"}
OWN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "gpu.py", "collectives.py")
FOLDERS = ("docs/*.md", "docs/book/*.md", "docs/pictures/*.svg")
ELSEWHERE = re.compile("[a-z]+:|#")  # how a link to another site begins, or to a heading of the same document


class Document(NamedTuple):
    """What a browser is sent: its content type, its content security policy, its bytes."""

    kind: str
    policy: str
    content: bytes


def documents() -> dict[str, Callable[[], Document]]:
    """Read all documents of a checkout; return by its name what makes each ready to be shown. Nothing where
    they are not, as where the package was installed by pip."""
    if not (ROOT / "docs/book/0d.md").is_file():
        return {}
    found = (path for folder in FOLDERS for path in sorted(ROOT.glob(folder)))
    paths = [*(ROOT / name for name in OWN), *map(file_of, LESSONS), *found]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8", "replace") for path in paths}
    return {name: cache(partial(shown, name, text, texts.keys())) for name, text in texts.items()}


def shown(name: str, text: str, names: Collection[str]) -> Document:
    """Make a document ready to be shown; its links lead to the others of these names."""
    style, suffix = part("document.css"), posixpath.splitext(name)[1]
    content = as_page(name, text, names, style) if suffix == ".md" else text
    # what a picture has of style stands in it
    allowed = "'unsafe-inline'" if suffix == ".svg" else f"'{sha256(style)}'"
    policy = f"default-src 'none'; style-src {allowed}; img-src 'self' data:; frame-ancestors 'none'"
    return Document(f"{KINDS[suffix]}; charset=utf-8", policy, content.encode())


def as_page(name: str, text: str, names: Collection[str], style: str) -> str:
    """Write a Markdown document as an HTML page."""
    from markdown_it import MarkdownIt  # a third of a second

    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(text)
    for opening, heading in zip(tokens, tokens[1:]):
        if opening.type == "heading_open":
            opening.attrSet("id", anchor(heading.content))
    for link in links(tokens):
        if not leads_somewhere(name, str(link.attrs["href"]), names):
            link.attrs.clear()
    title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), name)
    body = parser.renderer.render(tokens, parser.options, {})
    return part("document.html").format(title=escape(title), style=style, body=body)


def links(tokens: Sequence) -> Iterator:
    """Yield the beginnings of all links."""
    for token in tokens:
        yield from (child for child in token.children or () if child.type == "link_open")


def leads_somewhere(name: str, target: str, names: Collection[str]) -> bool:
    """Whether a link of the document `name` leads to another site, or to one of the documents."""
    beside = posixpath.join(posixpath.dirname(name), target.partition("#")[0])
    return bool(ELSEWHERE.match(target)) or posixpath.normpath(beside) in names


def anchor(heading: str) -> str:
    """Return a heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
