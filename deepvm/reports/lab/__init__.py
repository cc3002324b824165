"""What the recovery lab has found: tables, pictures, a page, files for others."""
