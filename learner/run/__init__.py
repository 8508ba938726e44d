"""What a run leaves behind: folder, metrics, summary, readable trajectories. No torch."""
