"""What happened, as pictures and words: timelines, memory, schedules, traces, SVG. Everything is drawn from
events."""
