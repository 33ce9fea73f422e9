"""Small SVG files: pictures of runs and schedules over time, and the book's drawings, which have no axis of
time. All are made of parts.py, the drawings of shapes.py too."""
