"""What holds for every test."""

import signal

# A shell that starts the tests in the background has SIGINT ignored, and so would all that they start: Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
