"""The language of a text, by its script and its most common words."""

import re
from typing import Literal

Language = Literal["de", "en", "es", "fr", "it", "nl", "pt"]

_LETTERS = re.compile(r"[^\W\d_]")
_OTHER_SCRIPT = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]++(?:'[^\W\d_]++)?")
_FEWEST_WORDS = 8
_FEWEST_LETTERS = 20
_MOST_OF_OTHER_SCRIPT = 0.4
_CLEARLY_MORE = 2

# words of two letters or more, since formulas have single ones
_COMMON_WORDS: dict[Language, str] = {
    "en": (
        "the of and to is that it was for with as are this be by not have from or which we his her"
        " has were their he she they but what when who where will would could should there then so"
        " if our its does did than into also only both"
    ),
    "de": (
        "der das und ist nicht von wir den dem ein eine einen einem im mit auf für sich des sie als"
        " auch es wird wurde aus bei nach wie noch aber oder dass haben hat war sind werden zum zur"
        " durch dann also kann nur"
    ),
    "fr": (
        "le les des est et dans une nous que qui du pour pas sur au avec il elle ce cette sont par"
        " plus mais ou où donc aussi être était ont leur aux ses d'abord c'est n'est qu'il"
    ),
    "es": (
        "el los las en es que una por con para del se lo como pero más su este esta son fue al"
        " también está qué ser nos donde sus entonces"
    ),
    "it": (
        "il di che è per una sono non con della del gli nel dei alla ma anche più questo questa"
        " ha stato come si quindi dalla delle"
    ),
    "nl": (
        "het een van en niet dat op te zijn voor met aan ook maar bij naar uit wordt deze dan nog"
        " wij hebben heeft werd omdat daarom"
    ),
    "pt": (
        "os em é que uma por com para do da não se mas mais seu sua são foi ao também está"
        " nós dos das então onde"
    ),
}
_COMMON = {name: frozenset(words.split()) for name, words in _COMMON_WORDS.items()}


def language_problem(text: str, wanted: Language) -> str | None:
    """A paragraph in another script or language; names and short quotations do not count.

    Args:
        text: Folded.
        wanted: The language that every paragraph should have.
    """
    for paragraph in text.split("\n"):
        letters = len(_LETTERS.findall(paragraph))
        if letters < _FEWEST_LETTERS:
            continue
        other = len(_OTHER_SCRIPT.findall(paragraph))
        if other > _MOST_OF_OTHER_SCRIPT * letters:
            return f"language: another script ({paragraph[:40]})"
        words = _WORD.findall(paragraph.lower())
        if len(words) < _FEWEST_WORDS:
            continue
        found = {name: sum(word in common for word in words) for name, common in _COMMON.items()}
        most = max(found, key=lambda name: (found[name], name == wanted))
        if most != wanted and found[most] >= max(3, _CLEARLY_MORE * found[wanted] + 1):
            return f"language: {most} ({paragraph[:40]})"
    return None
