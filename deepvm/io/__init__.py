"""Files, locks and folders of the user, with the standard library alone."""
