"""``--role eval``: scores with intervals, of models, checkpoints and endpoints."""
