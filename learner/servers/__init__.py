"""vLLM servers as processes: their command line, health and metrics. No torch."""
