"""Results of the recovery lab: tables, pictures, a page, files to publish."""
