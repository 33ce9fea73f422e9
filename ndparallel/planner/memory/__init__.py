"""The bytes of a rank by kind: states, activations, and what belongs to no tensor."""
