"""Whether a run that failed and recovered did what it should; independent of the trainer's code."""
