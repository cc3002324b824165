"""One rank's training: data, models, and the strict order of a step."""
