"""docs/layouts.md: what the text says of a plan that was found is in the table above it."""

import re

from ndparallel.lessons.registry import ROOT

TEXT = (ROOT / "docs" / "layouts.md").read_text("utf-8")


def found_for(model: str) -> str:
    """Return the line of the plan that the search found for this model's job."""
    rows = TEXT[TEXT.index(f"   {model} at ") :].splitlines()
    return next(row for row in rows if row.startswith("search"))


def test_sequence_parallelism_is_found_for_both_jobs_of_old_software_and_no_dualpipev():
    said = re.sub(r"\s+", " ", TEXT.partition("**Old software.**")[2].partition("- **")[0])
    assert "Sequence parallelism (2205.05198), which it finds for both" in said and "DualPipeV" not in said
    assert all(",sp," in found_for(model) for model in ("BLOOM 176B", "MT-NLG 530B"))
