"""What one actor process sustains, beside a bare client loop and another project's rollout loop."""
