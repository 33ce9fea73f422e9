"""What the lesson files at the root share: options, strategies, sweeps, and the run against one GPU."""
