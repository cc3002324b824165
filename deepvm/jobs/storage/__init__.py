"""Where a job's files come from and go to, beside its versions: backups, data, code."""
