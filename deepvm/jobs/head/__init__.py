"""The remote controller: a cloud machine that runs a job's controller, followed by a bucket."""
