"""Amazon Web Services: clients, credentials, responses and errors."""
