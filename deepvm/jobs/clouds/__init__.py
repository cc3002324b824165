"""Where machines come from: asked for, listed, released."""
