"""The machine that this runs on, measured with torch: hardware files, and steps beside their predictions."""
