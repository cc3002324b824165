"""Answers for people and programs: tables, documents, pictures, files for other tools."""
