"""The mathematics of an update as pure functions: advantages, losses, off-policy corrections."""
