"""The head: a machine of the cloud that runs the controller of a job, and how its user follows it through a bucket."""
