"""What actors and the learner say to each other. Imports nothing else of Rollway."""
