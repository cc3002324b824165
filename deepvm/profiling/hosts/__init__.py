"""The machines that take part in a measurement: named, reached, started and ended."""
