"""One policy update against TRL's, and against the bare model."""
