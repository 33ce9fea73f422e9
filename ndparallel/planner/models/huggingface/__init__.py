"""The config.json of a Hugging Face model: its keys, the families that they are of, and their shape."""
