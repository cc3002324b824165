"""What goes wrong, and when: each fault of the field is one file here and one line in the registry."""
