"""Tools do one thing and report what happened. They know no environment, reward or socket."""
