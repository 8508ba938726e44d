"""Data sets in their published formats, from local files or the hub, as what the environments ask for.

``source`` says where the rows are, ``rows`` reads them, ``loading`` decides what happens to one that
cannot be used. ``questions``, ``problems``, ``calls`` and ``corpus`` know one kind of row each.
"""
