"""The explorer: a page with controls to set. Python computes every number, the page draws."""
