"""One file for each exercise: the task, the model solution, and how an answer is graded."""
