"""Pipeline parallelism: schedules as data, what they cost, whether they can run, and how they look."""
