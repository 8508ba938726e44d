"""The trainable policy: packed model, DeepSpeed engine, ranks, checkpoints."""
