"""Safe reads, atomic writes and the user's folders, with the standard library alone."""
