"""A real ``local`` run under a seeded schedule of kills, stops and garbage: ``python -m benchmarks.chaos``."""
