"""Actors: drive episodes against vLLM servers on one event loop. They import no torch."""
