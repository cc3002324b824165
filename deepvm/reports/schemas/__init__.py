"""What the documents of commands hold: one type for each, its JSON Schema, and the columns of its CSV."""
