"""Types of the documents that commands print: values, schema and CSV columns follow from them."""
