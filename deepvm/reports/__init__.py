"""What people read: tables, machine-readable documents, pictures."""
