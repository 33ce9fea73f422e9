"""The transformer and its experts: every backward beside its forward, and priced where it is computed."""
