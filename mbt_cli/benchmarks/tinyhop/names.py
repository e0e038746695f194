"""Names of the fictional people, places, works and companies in tinyhop.

Each split has its own name parts, so no name of the validation split occurs in training.
"""

from dataclasses import dataclass, field

from mbt_cli.core.random_draws import Draws


@dataclass(frozen=True, slots=True)
class Entity:
    """A named thing. A year is one too, so that all facts have the same shape."""

    kind: str
    name: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Building blocks of the names in one split."""

    first_names: tuple[str, ...]
    surname_heads: tuple[str, ...]
    surname_tails: tuple[str, ...]
    town_heads: tuple[str, ...]
    town_tails: tuple[str, ...]
    region_heads: tuple[str, ...]
    region_tails: tuple[str, ...]
    rivers: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    companies: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PARTS = {
    "train": Parts(
        first_names=_words(
            "Alda Bram Cora Doran Elka Fenn Gisela Harlan Ivo Jora Kell Luma Marek Nessa Odo "
            "Pella Quin Rhea Soren Tilda Ulric Vera Wim Yara Anton Birgit Caspar Dalia"
        ),
        surname_heads=_words(
            "Bar Cald Dren Fal Gar Hol Jarn Kem Lind Mor Nor Pell Rav Sel Tor Vand Wes Yar"
        ),
        surname_tails=_words("ane by den er ik man ner ro sen tin ver way"),
        town_heads=_words(
            "Amber Birch Clay Dun East Fern Glen Hazel Iron Kings Lark Maple North Oak Pine "
            "Raven Stone Thorn"
        ),
        town_tails=_words("bridge brook field ford gate haven mouth wick"),
        region_heads=_words("Ald Bel Cor Del Esk Fair Gol Hart Jan Kar Mon Nav Ost Tal Ver"),
        region_tails=_words("land mark shire vale"),
        rivers=_words(
            "Arrow Brindle Cinder Drake Elder Finch Gray Heron Juniper Lantern Mallow Otter "
            "Quill Rushing Sable Tansy"
        ),
        adjectives=_words(
            "Silent Golden Broken Hidden Distant Crooked Empty Frozen Gentle Hollow Lonely "
            "Midnight Painted Quiet Restless Second Velvet Wooden"
        ),
        nouns=_words(
            "Orchard Harbor Letter Mirror Garden Lantern Bridge Winter Compass Window Station "
            "Promise River Shadow Violin Kitchen Tower Journey"
        ),
        companies=_words(
            "Beacon Copper Dolphin Falcon Granite Horizon Ivory Juno Keystone Laurel Meridian "
            "Nova Orion Pioneer Quarry Redwood Saturn Tidewater"
        ),
    ),
    "validation": Parts(
        first_names=_words(
            "Agnes Boris Celia Dirk Edda Felix Greta Hugo Ines Jasper Katrin Leopold Mina Nils "
            "Olga Pavel Rosa Stefan Thea Viktor Wanda Xenia Yusuf Zelda"
        ),
        surname_heads=_words(
            "Ack Brun Chal Dov Ell Farr Grim Hask Ing Krag Lom Mand Ned Prill Rost Stav"
        ),
        surname_tails=_words("aker berg dal feld gren hart ing low mont quist strom wood"),
        town_heads=_words(
            "Ash Bell Cedar Deer Elm Fox Green Holly Ivy Kettle Lime Mill Nettle Heath Pear Swan"
        ),
        town_tails=_words("bury cliff dale ham hill pool port ton"),
        region_heads=_words("Arn Bran Cast Dor Ern Fjor Gran Hul Ist Lor Mer Pol Rud Sten"),
        region_tails=_words("ania esia moor wold"),
        rivers=_words(
            "Aspen Bracken Crane Dipper Ebony Flint Gannet Hemlock Iris Kestrel Lupin Marten "
            "Nightjar Osprey"
        ),
        adjectives=_words(
            "Ancient Bitter Crimson Dusty Endless Faded Glass Honest Invisible Last Narrow "
            "Patient Rusty Scarlet Twisted Wandering"
        ),
        nouns=_words(
            "Anchor Bakery Candle Desert Engine Forest Guest Highway Island Judge Kingdom "
            "Lighthouse Market Needle Ocean Palace"
        ),
        companies=_words(
            "Atlas Bramble Citadel Dynamo Ember Fountain Galaxy Harvest Imperial Jubilee Kite "
            "Lotus Monarch Nimbus Opal Phoenix"
        ),
    ),
}
_COMPANY_WORDS = {
    "publisher": ("Press", "Books"),
    "studio": ("Pictures", "Films"),
    "company": ("Motors", "Textiles", "Foods", "Shipping"),
}
OLD_NAME_KINDS = ("town", "region")
"""Kinds whose aliases are older names, which only a document can reveal."""
_EARLIEST_YEAR = 1801
_PATIENT_TRIES = 12
_YEARS = 199


@dataclass(slots=True)
class Namer:
    """Draws names for one question that share no word."""

    split: str
    draws: Draws
    used: set[str] = field(default_factory=set)

    def entity(self, kind: str) -> Entity:
        """A new entity of a kind, with the short forms of its name as aliases.

        When words run out (many documents), words of titles and first names may repeat, and names
        of one word become names of two.
        """
        attempt = 0
        while True:
            parts = self._parts(kind)
            if attempt >= _PATIENT_TRIES and len(parts) == 1:
                parts = (f"{parts[0]} {self._parts(kind)[0]}",)
            own = parts[-1] if kind == "person" else " ".join(parts)
            needed = {own, *(parts if attempt < _PATIENT_TRIES else ())}
            if not self.used & needed:
                self.used.update(parts, (own,))
                return self._entity(kind, parts)
            attempt += 1

    def year(self) -> Entity:
        """A year that no other fact of the question uses, so that comparisons have no ties."""
        while (year := str(_EARLIEST_YEAR + self.draws.below(_YEARS))) in self.used:
            pass
        self.used.add(year)
        return Entity("year", year)

    def _parts(self, kind: str) -> tuple[str, ...]:
        parts, pick = PARTS[self.split], self.draws.pick
        match kind:
            case "person":
                surname = pick(parts.surname_heads) + pick(parts.surname_tails)
                return pick(parts.first_names), surname
            case "novel" | "film":
                return pick(parts.adjectives), pick(parts.nouns)
            case "town":
                return (pick(parts.town_heads) + pick(parts.town_tails),)
            case "region":
                return (pick(parts.region_heads) + pick(parts.region_tails),)
            case "river":
                return (pick(parts.rivers),)
        return (pick(parts.companies),)

    def _entity(self, kind: str, parts: tuple[str, ...]) -> Entity:
        match kind:
            case "person":
                first, last = parts
                return Entity(kind, f"{first} {last}", (last, f"{first[0]}. {last}"))
            case "novel" | "film":
                return Entity(kind, f"The {' '.join(parts)}")
            case "town" | "region":
                return Entity(kind, parts[0])
            case "river":
                return Entity(kind, f"River {parts[0]}", (parts[0],))
        return Entity(kind, f"{parts[0]} {self.draws.pick(_COMPANY_WORDS[kind])}", parts)
