"""Models: their shape, read from a preset, a Hugging Face config.json or flags; their parameters."""
