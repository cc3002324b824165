"""Answers for people and programs: tables, pages, documents, pictures."""
