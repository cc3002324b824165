"""Where a job's files come from and go to, besides its checkpoints: backups, data, code."""
