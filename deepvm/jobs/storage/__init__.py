"""Where a job's files come from and go to, besides its versions: backups, data, code."""
