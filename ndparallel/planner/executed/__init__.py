"""The lessons' own runs, predicted to the last digit: what their layers charge, say and keep, on every GPU of a cluster."""
