"""Plans as the files of other tools."""
