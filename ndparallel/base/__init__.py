"""Records of messages and events, groups of ranks, arrays that are only sizes, errors for people."""
