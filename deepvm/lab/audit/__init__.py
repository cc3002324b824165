"""Whether a run that failed and came back did what it should have done.

Independent of the code that ran it.
"""
