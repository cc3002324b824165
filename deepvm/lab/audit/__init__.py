"""Whether a run that failed and came back did what it should have done; independent of the code that ran it."""
