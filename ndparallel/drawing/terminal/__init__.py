"""Pictures on the terminal: timelines, and schedules, as lines of letters and colours."""
