"""The tables of the Agent-R1 paper in miniature: every algorithm and mask ablation on the built-in world."""
