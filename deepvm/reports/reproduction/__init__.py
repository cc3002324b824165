"""Figures of the papers, computed again and compared with what is printed."""
