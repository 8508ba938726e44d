"""An OpenAI-compatible endpoint for each episode: agents that exist already are trained as they are."""
