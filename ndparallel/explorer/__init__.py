"""The explorer: a page on which a reader turns the knobs. Python computes every number, the page draws."""
