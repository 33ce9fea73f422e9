"""A plan as the flags of a training framework, and a framework's flags as a plan.

Each framework has a folder: write.py is what --emit writes, read.py what --from-NAME reads.
"""
