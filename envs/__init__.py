"""Environments say what a tool's result means: next messages, reward, end. They know no socket and no torch."""
