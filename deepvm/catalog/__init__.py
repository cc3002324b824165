"""Where instance types and prices come from: embedded catalogues and the user's own files."""
