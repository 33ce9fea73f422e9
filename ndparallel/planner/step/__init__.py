"""The seconds of a training step: the pipeline, what travels beside it, the optimizer."""
