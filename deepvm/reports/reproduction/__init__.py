"""What the papers print, and what deepvm computes of it now."""
