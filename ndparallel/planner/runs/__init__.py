"""Training runs that others measured and published: read as jobs and plans, predicted, and what their errors say of a prediction."""
