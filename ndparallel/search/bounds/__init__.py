"""The seconds of thousands of plans at once, bounded from below, and their bytes."""
