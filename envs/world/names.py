"""Names of the built-in world: two words each, from small lists, split for training and held-out.

Every word occurs in both splits, but a *pair* of words belongs to exactly one of them:
a policy has seen each word of a held-out name, and never the name.
"""

from __future__ import annotations

import random

FIRST = ["Ada", "Alba", "Anton", "Arno", "Bela", "Boris", "Bruno", "Carla", "Cato", "Celia", "Clara", "Dario", "Delia", "Dora", "Edda", "Edgar", "Elena", "Elias", "Emil", "Enzo", "Erna", "Felix", "Flora", "Frida", "Gideon", "Greta", "Hanna", "Hector", "Hugo", "Ida", "Igor", "Irma", "Ivo", "Jonas", "Judith", "Karl", "Klara", "Lars", "Leona", "Lorenz", "Lydia", "Magda", "Marco", "Mira", "Nadia", "Nora", "Olga", "Oscar", "Petra", "Quentin", "Rita", "Rosa", "Selma", "Simon", "Thea", "Viktor"]

LAST = ["Abbott", "Arden", "Bauer", "Becker", "Bolton", "Brandt", "Calder", "Carver", "Crane", "Dalton", "Draper", "Ekman", "Ellis", "Farrow", "Fischer", "Forster", "Garner", "Gould", "Graham", "Hartman", "Hobbs", "Holm", "Irving", "Jansen", "Keller", "Kessler", "Kovac", "Lambert", "Larsen", "Lindgren", "Lowell", "Marsh", "Mercer", "Moreau", "Nash", "Nilsen", "Norton", "Ogden", "Osborn", "Palmer", "Pryce", "Quill", "Ramsey", "Reeves", "Ritter", "Sandoval", "Sayers", "Shaw", "Stroud", "Tanner", "Thorne", "Ulrich", "Vance", "Wagner", "Webb", "Yates"]

WORK_FIRST = ["Amber", "Ancient", "Bitter", "Black", "Blind", "Blue", "Bright", "Broken", "Burning", "Copper", "Crimson", "Crooked", "Distant", "Double", "Eager", "Early", "Empty", "Endless", "Fading", "Final", "Frozen", "Gentle", "Golden", "Green", "Hidden", "Hollow", "Humble", "Idle", "Iron", "Ivory", "Jade", "Little", "Lonely", "Lost", "Lucky", "Marble", "Midnight", "Naked", "Narrow", "Nimble", "Pale", "Paper", "Proud", "Purple", "Quiet", "Restless", "Rising", "Sacred", "Scarlet", "Secret", "Silent", "Sleeping", "Solar", "Stolen", "Velvet", "Wild"]

WORK_LAST = ["Anchor", "Arrow", "Autumn", "Bell", "Bridge", "Candle", "Canyon", "Castle", "Circus", "Clock", "Comet", "Compass", "Corridor", "Crown", "Dancer", "Desert", "Dragon", "Echo", "Ember", "Falcon", "Feather", "Fountain", "Garden", "Ghost", "Harbor", "Heron", "Hunter", "Island", "Journey", "Kingdom", "Lantern", "Letter", "Meadow", "Mirror", "Monsoon", "Moon", "Nomad", "Orchard", "Palace", "Parade", "Promise", "Raven", "River", "Shadow", "Sparrow", "Station", "Stranger", "Summer", "Symphony", "Thief", "Tiger", "Tower", "Valley", "Violin", "Voyage", "Winter"]

ORG_FIRST = ["Apex", "Argon", "Atlas", "Beacon", "Boreal", "Cobalt", "Delta", "Emerald", "Fenix", "Gamma", "Granite", "Helix", "Icon", "Juniper", "Krypton", "Lotus", "Lumen", "Matrix", "Nexus", "Nova", "Omega", "Onyx", "Orion", "Pinnacle", "Polar", "Quartz", "Radian", "Sable", "Sigma", "Summit", "Titan", "Topaz", "Umbra", "Vector", "Vertex", "Zenith"]

ORG_LAST = ["Aviation", "Capital", "Chemicals", "Dynamics", "Electric", "Energy", "Engines", "Foods", "Foundry", "Freight", "Glass", "Instruments", "Laboratories", "Logistics", "Media", "Metals", "Motors", "Optics", "Partners", "Pictures", "Press", "Railways", "Records", "Robotics", "Shipping", "Software", "Studios", "Systems", "Textiles", "Timber", "Toys", "Works"]

CITY_FIRST = ["Cape", "East", "Fort", "Grand", "High", "Lake", "Low", "Mount", "New", "North", "Old", "Port", "Saint", "South", "Upper", "West"]

CITY_LAST = ["Albany", "Ashby", "Barrow", "Belmont", "Brixton", "Camden", "Carlisle", "Clifton", "Corinth", "Dover", "Dunmore", "Exeter", "Fairfax", "Galway", "Hadley", "Halifax", "Ilford", "Jasper", "Kendal", "Kingsley", "Lisbon", "Ludlow", "Malden", "Milford", "Newark", "Oakham", "Oxford", "Paxton", "Preston", "Radnor", "Ripley", "Salem", "Selby", "Stafford", "Thornton", "Truro", "Vernon", "Warwick", "Weston", "York"]

COUNTRY_FIRST = ["Central", "Eastern", "Free", "Greater", "Inner", "Lower", "Northern", "Outer", "Royal", "Southern", "United", "Western"]

COUNTRY_LAST = ["Arvonia", "Belmaria", "Caldera", "Drovia", "Elbonia", "Fenwara", "Gondia", "Hestria", "Istria", "Jorvia", "Karelia", "Lodovia", "Morania", "Norvania", "Ostania", "Pelagia", "Quoria", "Rovenia", "Sorvia", "Talvia", "Urania", "Vostria", "Weslandia", "Zubrovia"]

POOLS: dict[str, tuple[list[str], list[str]]] = {
    "person": (FIRST, LAST),
    "work": (WORK_FIRST, WORK_LAST),
    "organisation": (ORG_FIRST, ORG_LAST),
    "city": (CITY_FIRST, CITY_LAST),
    "country": (COUNTRY_FIRST, COUNTRY_LAST),
}

SPLITS = ("train", "heldout")


def split_of(first: int, last: int) -> str:
    """The split that owns the pair of word indices: one pair in five is held out, spread evenly over the words."""
    return "heldout" if (2 * first + last) % 5 == 0 else "train"


def draw_names(pool: str, split: str, n: int, rng: random.Random) -> list[str]:
    """``n`` distinct full names of a pool, all from one split, in random order."""
    firsts, lasts = POOLS[pool]
    names = [
        f"{a} {b}" for i, a in enumerate(firsts) for j, b in enumerate(lasts) if split_of(i, j) == split
    ]
    if n > len(names):
        raise ValueError(f"the {split} split holds {len(names)} names of pool '{pool}', not {n}")
    return rng.sample(names, n)
