"""The seeded generator of the world's facts and of the passages that state them.

A world is a set of entities (people, films, books, organisations, cities, countries) with
attributes that point at other entities or at years. One passage tells all about one entity,
so a question that follows k attributes needs k different passages.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from envs.world.names import draw_names
from tools.search_index import Passage

BIRTH_YEARS = tuple(str(y) for y in range(1930, 1960))
FOUNDING_YEARS = tuple(str(y) for y in range(1980, 2010))

#: kind -> attribute -> kind of its value ("year" values are not entities).
RELATIONS: dict[str, dict[str, str]] = {
    "film": {"director": "person", "star": "person", "studio": "organisation", "year": "year"},
    "book": {"author": "person", "publisher": "organisation", "year": "year"},
    "person": {"spouse": "person", "birthplace": "city", "employer": "organisation", "birthyear": "year"},
    "organisation": {"founder": "person", "city": "city", "founding": "year"},
    "city": {"mayor": "person", "country": "country"},
    "country": {"capital": "city", "president": "person"},
}

#: kind -> attribute that orders its entities in time.
TIME = {"film": "year", "book": "year", "person": "birthyear", "organisation": "founding"}

SIZES: dict[str, dict[str, int]] = {
    "train": {"person": 1500, "film": 900, "book": 600, "organisation": 300, "city": 200, "country": 40},
    "heldout": {"person": 500, "film": 350, "book": 250, "organisation": 150, "city": 100, "country": 30},
}

#: Two or three wordings a kind; the order of the attributes differs, so position alone does not tell them apart.
WORDINGS: dict[str, tuple[str, ...]] = {
    "film": (
        "A {year} film directed by {director}, starring {star} and produced by {studio}.",
        "A film of {year} produced by {studio}. It stars {star} and was directed by {director}.",
    ),
    "book": (
        "A {year} book written by {author} and published by {publisher}.",
        "A book published in {year} by {publisher}. It was written by {author}.",
    ),
    "person": (
        "Born in {birthyear} in {birthplace}, married to {spouse} and employed by {employer}.",
        "Works for {employer}. Was born in {birthplace} in {birthyear} and married {spouse}.",
    ),
    "organisation": (
        "A company founded in {founding} by {founder} and based in {city}.",
        "A company based in {city}. It was founded by {founder} in {founding}.",
    ),
    "city": (
        "A city in {country} whose mayor is {mayor}.",
        "A city governed by mayor {mayor}. It lies in {country}.",
    ),
    "country": (
        "A country whose capital is {capital} and whose president is {president}.",
        "A country led by president {president}. Its capital is {capital}.",
    ),
}


@dataclass(frozen=True)
class Entity:
    """A named thing; ``attributes`` maps a relation to the name of an entity or to a year."""

    name: str
    kind: str
    alias: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The accepted names, the canonical one first."""
        return (self.name, self.alias) if self.alias else (self.name,)


def generate_entities(seed: int, split: str) -> dict[str, Entity]:
    """All entities of a world by name, in a fixed order."""
    rng = random.Random(f"world/{split}/{seed}")
    sizes = SIZES[split]
    works = draw_names("work", split, sizes["film"] + sizes["book"], rng)
    names = {
        "film": works[: sizes["film"]],
        "book": works[sizes["film"] :],
        **{kind: draw_names(kind, split, sizes[kind], rng) for kind in ("person", "organisation", "city", "country")},
    }
    spouses = _couples(names["person"], rng)

    def value(kind: str, relation: str, target: str, name: str) -> str:
        if relation == "spouse":
            return spouses[name]
        if target == "year":
            return rng.choice(BIRTH_YEARS if kind == "person" else FOUNDING_YEARS)
        return rng.choice([n for n in rng.sample(names[target], 2) if n != name])

    entities = {}
    for kind, relations in RELATIONS.items():
        for name in names[kind]:
            attributes = {r: value(kind, r, target, name) for r, target in relations.items()}
            entities[name] = Entity(name, kind, _alias(name, kind), attributes)
    for name in names["city"]:  # a capital lies in its country, where the country has any city
        country = entities[name].attributes["country"]
        entities[country].attributes["capital"] = name
    return entities


def passages_of(entities: dict[str, Entity]) -> list[Passage]:
    """One passage an entity; its wording depends on its name alone."""
    passages = []
    for number, entity in enumerate(entities.values()):
        wordings = WORDINGS[entity.kind]
        text = wordings[zlib.crc32(entity.name.encode()) % len(wordings)].format(**entity.attributes)
        if entity.alias:
            text += f" Also called {entity.alias}."
        passages.append(Passage(f"p{number}", entity.name, text))
    return passages


def _couples(people: list[str], rng: random.Random) -> dict[str, str]:
    """Pairs everyone with someone (an odd number leaves one person married to the first)."""
    order = rng.sample(people, len(people))
    couples = {}
    for a, b in zip(order[::2], order[1::2]):
        couples[a], couples[b] = b, a
    if len(order) % 2:
        couples[order[-1]] = order[0]
    return couples


def _alias(name: str, kind: str) -> str | None:
    """A second accepted name for about a third of the companies and countries."""
    if zlib.crc32(f"alias {name}".encode()) % 3:
        return None
    return {"organisation": f"{name} Group", "country": f"{name} Republic"}.get(kind)
