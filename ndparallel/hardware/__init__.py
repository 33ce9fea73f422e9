"""Presets of GPUs with their sources, the pocket GPU, and what slows a GPU or a link."""
