"""The command line: one folder per group of commands; each command imports what it needs when it runs."""
