"""Configuration: pydantic models, YAML presets, dotted overrides."""
