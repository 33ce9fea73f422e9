"""JSON with comments and commas behind the last, as DeepSpeed reads its configurations (Hjson).

Idea   Comments become blanks, so that lines and columns of an error stay what they are.
Limit  Hjson also has names and words without quotes, and lines without commas: they are refused as no JSON.
       transformers and Accelerate read plain JSON alone.
"""

import re

# each matches to its end, or to the line's and the text's, so that no text is read twice
STRING = r'"(?:[^"\\\n]|\\.)*"?'
COMMENT = re.compile(rf"(?P<string>{STRING})|//[^\n]*|\#[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
LAST_COMMA = re.compile(rf"(?P<string>{STRING})|,(?=\s*[}}\]])")


def plain_json(text: str) -> str:
    """The text without comments and last commas, each character in its place."""
    for passed_over in (COMMENT, LAST_COMMA):
        text = passed_over.sub(lambda found: found["string"] or re.sub(r"[^\n]", " ", found[0]), text)
    return text
