"""What helps people who do not know the commands yet: topics, other names of things, shell completion."""
