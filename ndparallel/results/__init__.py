"""From events to numbers, tables and JSON."""
