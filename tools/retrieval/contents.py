"""``contents``, the one string that a document is in Search-R1's corpora and answers: title, new line, text."""

from __future__ import annotations


def join_contents(title: str, text: str) -> str:
    """The title goes in quotes on a line of its own, as in Search-R1's corpus of Wikipedia."""
    return f'"{" ".join(title.splitlines())}"\n{text}'


def split_contents(contents: str) -> tuple[str, str]:
    """(title without quotes, text)."""
    title, _, text = contents.partition("\n")
    return title.strip().strip('"'), text
