"""The file format: a zip archive that torch.load reads, its layout, checksums and manifest."""
