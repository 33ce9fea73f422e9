"""Published training runs, and the error of the predictions."""
