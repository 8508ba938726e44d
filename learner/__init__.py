"""The learner: owns the tasks, the policy's weights and version, and the run folder."""
