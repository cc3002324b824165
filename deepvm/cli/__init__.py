"""The command line: one file per group of commands; each command imports what it needs when it runs."""
