"""No word before its explanation: where a chapter uses a term for the first time it explains it, in bold, or
links to the chapter that does."""

import re

import pytest

from ndparallel.lessons.registry import ROOT

BOOK = ROOT / "docs" / "book"
TERMS = {
    "0d": ["activations", "microbatch", "optimizer step", "recomputation", "pocket"],
    "1d": ["DDP", "ZeRO-1", "FSDP", "HSDP", "all-reduce", "reduce-scatter", "all-gather", "bucket", "ring"]
    + ["reshard", "exposed", "prefetch"],
    "2d": ["TP", "column parallel", "row parallel", "SP"],
    "3d": [
        "stage",
        "bubble",
        "schedule",
        "GPipe",
        "1F1B",
        "interleaved",
        "chunk",
        "ZB-H1",
        "ZB-V",
        "DualPipeV",
    ],
    "cp": ["CP", "zigzag"],
    "ep": ["EP", "router", "all-to-all", "capacity"],
    "cluster": ["MFU", "HFU", "error bar"],
}
NOT_PROSE = re.compile(
    r"```.*?```|<!--.*?-->|`[^`\n]*`|^#.*?$|!\[.*?\]\([^)]*\)|\]\([^)]*\)", re.DOTALL | re.MULTILINE
)


def prose(chapter: str) -> str:
    """The text up to the table of other names, without code; what a link says stays, in brackets."""
    text = (BOOK / f"{chapter}.md").read_text("utf-8").partition("## What it is called elsewhere")[0]
    _, _, rest = text.partition("## ")
    return NOT_PROSE.sub(lambda found: "]" if found[0].startswith("](") else " ", rest)


def first_use(term: str, text: str) -> re.Match | None:
    return re.search(
        rf"(?<![\w-]){re.escape(term)}(?:e?s|d|ed)?(?![\w-])", text, re.IGNORECASE if term.islower() else 0
    )


@pytest.mark.parametrize(("home", "term"), [(home, term) for home, terms in TERMS.items() for term in terms])
def test_a_term_is_explained_or_linked_where_a_chapter_first_uses_it(home, term):
    for chapter in [*TERMS, "4d"]:
        text = prose(chapter)
        used = first_use(term, text)
        if used is None:
            continue
        before, after = text[: used.start()], text[used.end() :]
        linked = before.rfind("[") > before.rfind("]") and "]" in after
        bold = before.count("**") % 2 == 1 or before.endswith("*")
        assert bold if chapter == home else linked, (
            f"{chapter}.md: {text[used.start() - 60 : used.end() + 20]!r}"
        )
