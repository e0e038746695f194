"""Leaks: sentences that show that a text was written from a given answer, text or instruction.

A rule is about what is said, in any common wording: `the answer we were given`, `the provided
correct answer`, `the student assumed`. The same words about the documents are not a leak: `the
answer is given in document [5]`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from mbt_cli.gates.words import Sentences

_AROUND = 300
"""Characters of the sentence that are read before and after a match."""
_SHOWN_CHARACTERS = 60

_CONTRACTIONS: Mapping[str, str] = {"m": "am", "re": "are", "ve": "have"}
_CONTRACTED = re.compile(r"(?<=[a-z])'(m|re|ve)\b", re.IGNORECASE)
"""Read in full, so that no rule has to know both forms: `I'm`, `we've`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of leak.

    Args:
        name: What the text gives away.
        words: A regular expression of lower-case words that show it, compiled when a text has one
            of the needles: all of them would take 70 ms of the start of each command.
        needles: One of these occurs in every match, so that most texts are not searched.
        unless: Words in the same sentence that give them another meaning.
        unless_before: The same, but only between the beginning of the sentence and the match.
        unless_asked: Words in the question that are its subject, so that the rule does not hold.
    """

    name: str
    words: str
    needles: tuple[str, ...] = ()
    unless: re.Pattern[str] | None = None
    unless_before: re.Pattern[str] | None = None
    unless_asked: re.Pattern[str] | None = None

    def find(self, lower: str, sentences: Sentences, question: str) -> re.Match[str] | None:
        """The first match that means a leak."""
        if self.needles and not any(needle in lower for needle in self.needles):
            return None
        if self.unless_asked and self.unless_asked.search(question):
            return None
        for match in _compiled(self.words).finditer(lower):
            start, end = sentences.around(match.start(), _AROUND)
            if self.unless and self.unless.search(lower, start, max(end, match.end())):
                continue
            if self.unless_before and self.unless_before.search(lower, start, match.start()):
                continue
            return match
        return None


class Leaks:
    """Finds leaks.

    Args:
        more: Name to a regular expression of the user's own; case is ignored.
    """

    def __init__(self, more: Mapping[str, str] | None = None) -> None:
        own = (more or {}).items()
        self._own = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in own]

    def problem(self, text: str, question: str = "") -> str | None:
        """The first leak of a folded text, with its words; None without one.

        Args:
            text: The text.
            question: What it is about. A question about a student may be answered with one.
        """
        own, text = text, _CONTRACTED.sub(_in_full, text)
        lower = text.lower()
        if len(lower) != len(text):  # a letter with two lower-case ones, such as a dotted I
            lower = "".join(c if len(c.lower()) > 1 else c.lower() for c in text)
        sentences = Sentences(text)
        for name, match in self._found(own, lower, sentences, question.lower()):
            return f"leak: {name} ({' '.join(match[0].split())[:_SHOWN_CHARACTERS]})"
        return None

    def _found(
        self, text: str, lower: str, sentences: Sentences, question: str
    ) -> Iterator[tuple[str, re.Match[str]]]:
        for rule in RULES:
            if match := rule.find(lower, sentences, question):
                yield rule.name, match
        for name, pattern in self._own:
            if match := pattern.search(text):
                yield name, match


def _in_full(contracted: re.Match[str]) -> str:
    return f" {_CONTRACTIONS[contracted[1].lower()]}"


def _needles(words: str) -> tuple[str, ...]:
    return tuple(words.split("|"))


def _any_of(*parts: str) -> str:
    return "|".join(f"(?:{part})" for part in parts)


_compiled = cache(re.compile)


_ANSWER = r"(?:answers?|solution)"
_OUTCOME = r"(?:answers?|solution|result|conclusion|outcome)"
_RIGHT = r"(?:correct|right|true|final|actual|exact|proper|expected|wanted|full)"
_GIVEN = (
    r"(?:given|provided|supplied|prescribed|specified|stated|known|indicated|required|listed"
    r"|annotated|attached|recorded|disclosed|revealed|sample|intended|hidden|predetermined"
    r"|promised)"
)
_LABEL = r"(?:gold(?:en)?|ground[- ]truth|reference|official|model|target|label(?:l?ed)?|sample)"
_BE = r"(?:is|was|has been|had been|being|were|are|have been|had)"
_US = r"(?:we|i)"
_WERE = (
    rf"{_US} (?:are|were|was|am|have been|had been|have|had)(?: already| all| just"
    rf"| also){{0,4}}"
)
_HANDED = (
    r"(?:given|provided|supplied|specified|stated|revealed|disclosed|handed|told|shown|listed"
    r"|attached|written down|spelled out|announced|included)"
)
_HERE = (
    r"(?=\s*(?:$|[.,;:)!?\n\"-]|to (?:us|me|start)\b|above\b|below\b|here\b|as\b|is\b|was\b|must\b"
    r"|and\b|with\b|so\b|along\b|before|already\b|in advance\b|up front\b"
    r"|at the (?:top|outset|start|beg)|from the (?:start|outset|beginning)"
    r"|(?:in|by|from) (?:the|this|our) (?:prompt|task|question|instructions?|user|teacher|problem"
    r"|request|exercise|setter)\b))"
)
_TOPICS = (
    r"documents?|passages?|paragraphs?|articles?|texts?|sources?|sentences?|pages?|entry|entries"
    r"|tables?|lists?|biography|excerpts?|snippets?|context|interview|book|other|first|second"
    r"|third|last|both|each"
)
_IN_DOCUMENTS = re.compile(
    rf"\b(?:in|by|from|on|within|inside|at|of) (?:[\w'\"-]+ ){{0,4}}?(?:{_TOPICS})\b"
    rf"|\bthe (?:{_TOPICS}) (?:says?|tells?|states?|gives?)\b"
)
_OPEN = re.compile(
    r"\b(?:not|never|without|yet|cannot|nobody|no one|nothing|if|whether|can|could|would|must be|to"
    r" be|what would)\b|n't\b"
)
_NEGATED = re.compile(r"\b(?:not|never|yet|cannot|nobody|no one|nothing|if|whether)\b|n't\b")
_SAYS = (
    r"(?:say|state|claim|conclude|assume|suggest|get|miss|stop|overlook|confuse|jump|ignore|treat"
    r"|mention|make|answer|skip|take|read|guess|repeat|wander|forget|think|choose|explain|show"
    r"|note|tell|warn|use|arrive|give|contain|contradict|agree|list|have|confirm|name|end|point"
    r"|prove|produce|need|want|require|ask|forbid|demand|provide|expect|reveal)s?(?:d|ed|ped)?"
    r"|mix(?:e[sd])?|miss(?:es|ed)|said|told|went|goes|took|got|made|forgot|thought|wrote|writes?"
    r"|chose|mistook|misread|was wrong|is wrong|was right|is right|was mistaken|is mistaken|has|had"
    r"|gave|asks|asked"
)
_TEXT = r"(?:thinking|reasoning|rollout|trace|attempt|response|reply|draft|monologue)"
_THOUGHTS = r"(?:thinking|reasoning|trace|rollout|thoughts|monologue)"
_MAKER = r"(?:student|pupil|learner|trainee|apprentice)"
_ORDERS = r"(?:instructions?|guidelines?|prompt|system message|rubric)"

_NO_DOCUMENT = r"(?! (?:of|for|to|at|in|as|on|from|with|that (?:he|she|they))\b)"
"""After a noun: what would make it one of the documents' own, such as `the brief of the judge`."""

RULES: tuple[Rule, ...] = (
    Rule(
        "the instructions",
        _any_of(
            # nouns of the writing itself, which neither a question nor its documents have
            rf"\b(?:our|my|your|these|this) (?:\w+ )?(?:instructions?|guidelines|prompt"
            rf"|rubric|system message)\b{_NO_DOCUMENT}",
            rf"\b(?:the|our|my|this) (?:prompt|rubric|assignment|brief|briefing"
            rf"|hint) (?:(?:{_SAYS})\b|{_US} )",
            r"\b(?:in|from|by|per|to|with) the (?:brief|briefing|assignment|hint)\b"
            r"(?=[.,;:]|$| (?:that|it|says?|we|i|is|was)\b)",
            rf"\b(?:hint|note|label|key|target|string)s? (?:that |which )?{_US} (?:am|are|was"
            r"|were|have been|had been|got|received) (?:given|sent|handed|shown|told|passed)\b",
            r"\b(?:task|question|prompt|exercise|puzzle)(?:'s)? (?:author|setter|writer"
            r"|creator)s?\b",
            rf"\bthe (?:graders?|annotators?|evaluators?|requester) (?:will |may |can "
            rf"|only ){{0,4}}"
            rf"(?:{_SAYS}|accepts?|wishes)\b",
            r"\bas an assistant\b(?=[,.;:])",
            r"\b(?:my|our) (?:final )?(?:output|reply|response|monologue|trace|rewrite) (?:has to"
            r"|have to|must|should|needs? to|is to|ought|will|may|can)\b",
            rf"\b{_US} (?:are|were|am|was|have been|had been) (?:\w+ )?(?:asked|told|instructed"
            rf"|given"
            r"|meant|supposed|required) (?:\w+ )?to (?:improve|rewrite|revise|correct|polish|edit"
            r"|rephrase|reword|expand|shorten|imitate|fix)\b",
        ),
        needles=_needles(
            "instruction|guideline|prompt|brief|assignment|rubric|system message|hint|note|label"
            "|key"
            "|target|value|string|output|reply|response|monologue|trace|rewrite|asked|told|given"
            "|meant|supposed|required|author|setter|writer|creator|grader|annotator|evaluator"
            "|assistant"
        ),
        unless=_IN_DOCUMENTS,
    ),
    Rule(
        "an earlier text",
        _any_of(
            rf"\b(?:text|sample|version|copy|piece|sheet|one),? (?:that |which )?{_US} (?:(?:am"
            rf"|are|was"
            r"|were|have been|had been) (?:given|sent|handed|shown|passed)|got|received)\b",
            rf"\b(?:my predecessor|our predecessor|(?:some|any)(?:body|one)(?: else)?"
            rf"|the (?:author|solver"
            rf"|writer|other))'s (?:\w+ )?{_TEXT}\b",
            r"\b(?:run|output|attempt|answer|reasoning|reply|response|try) (?:of|by|from) (?:the"
            r"|a|that"
            r"|this) (?:\w+ )?(?:model|llm|assistant)\b"
            rf"(?= (?:{_SAYS}|never|which|that)\b|[.,;:!?]|$)",
        ),
        needles=_needles(
            "response|reply|reasoning|attempt|output|thought|model|llm|assistant|text|sample"
            "|version"
            "|copy|piece|sheet|one|draft|trace|monologue"
        ),
        unless=_IN_DOCUMENTS,
    ),
    Rule(
        "a given answer",
        _any_of(
            r"\bthe (?:provided|supplied|submitted|incoming) (?:response|reply|reasoning|attempt"
            r"|output|thoughts?)\b",
            # the end is fixed, whatever the documents say
            rf"\b{_US} (?:must|have to|need to|have got to|should)\b[^.!?\n]{{0,50}}\b(?:whatever"
            rf"|no"
            r" matter what|regardless of (?:what|how)|even if) the (?:documents|passages|texts"
            r"|sources|evidence)\b",
            r"\b(?:desired (?:final )?(?:conclusion|ending)|(?:wanted|required|prescribed|demanded)"
            r" (?:final )?(?:conclusion|ending|answer))\b",
            r"\banswers? (?:that |which )?(?:they|the task|the prompt) (?:want|expect|need"
            r"|ask)s?\b",
            r"\b(?:correct|right|expected|final) (?:response|reply|output) (?:is|was) (?:stated"
            r"|given"
            r"|listed|specified|supplied|known|provided)\b",
            r"\b(?:match(?:es|ed)?|agree(?:s|d)? with|equals?|same as|consistent with) the (?:label"
            r"|key|target|gold|reference)\b(?=[.,;:!?]|$)",
            rf"\b{_US} only (?:have|need) to (?:back|support|justify|explain|defend"
            rf"|motivate) (?:it|this)\b",
            rf"\b(?:having|{_US} (?:have|had)) (?:already )?(?:seen|read|received|got"
            rf"|looked at) the"
            rf" (?:{_RIGHT} ){{0,4}}{_ANSWER}\b",
        ),
        needles=_needles(
            "provided|supplied|submitted|incoming|whatever|no matter|regardless|even if|response"
            "|reply|output|label|key|target|gold"
            "|reference|only |answer|solution|conclusion|ending"
        ),
    ),
    Rule(
        "a pretence",
        _any_of(
            # doubt that is made to order
            r"\b(?:insert|add|include|simulate|stage|fake|work in|sprinkle|put in) (?:an? |some "
            r"|the"
            r" |in )*(?:\w+ (?:of )?)?(?:doubts?|hesitation|self-corrections?|reflection|wait)\b",
            rf"\b{_US} (?:must not|mustn't|should not|shouldn't|cannot|can't|may not) let (?:it"
            rf"|on|this"
            r"|anyone)\b",
            r"\bas (?:if|though) it (?:was|were) (?:my|our) own\b",
            rf"\b{_US} (?:must|should|need to|have to|ought to|want to|try to"
            rf"|can) (?:\w+ )?(?:sound"
            rf"|look|seem|appear|read|write|act) (?:as (?:if|though)|like) {_US}\b",
        ),
        needles=_needles(
            "as if|as though|like|doubt|hesitation|self-correction|reflection|wait| let "
        ),
    ),
    Rule(
        "a given answer",
        _any_of(
            # the gold answer, the ground truth, the answer key says
            rf"\b(?<!our )(?<!my ){_LABEL}(?:[- ](?:standard|correct|final)){{0,4}} {_ANSWER}\b",
            r"\bground[- ]truth\b|\bgold(?:en)? label\b",
            r"\banswer (?:field|label|sheet)\b",
            r"\b(?:in|to|with|by|from|per) the answer key\b(?! (?:to|of|for)\b)",
            rf"\bthe (?:answer )?key (?:{_SAYS}|is|at the (?:top|end)|above|below)\b",
            r"\bthe label (?:attached[\w ]{0,20} )?(?:reads|says|states|gives)\b",
            # the provided correct answer, the known answer
            r"\b(?:the|a|this|that|its"
            rf"|your) (?:already )?{_GIVEN} (?:{_RIGHT} ){{0,4}}(?:{_ANSWER}"
            r"|result|conclusion)\b(?! types?\b| format\b| set\b)",
            # the answer above
            rf"\b(?:the|this|that) (?:{_RIGHT} ){{0,4}}{_ANSWER} (?:above|below)\b",
        ),
        needles=_needles("answer|solution|ground|gold|result|conclusion|key|label"),
    ),
    Rule(
        "a given answer",
        _any_of(
            # the answer (that) was provided; the answer, as disclosed to us; the answer given is
            rf"\b{_OUTCOME}(?:,? (?:that|which))?(?: {_BE}){{0,4}}(?: (?:already|also|just"
            r"|explicitly"
            r"|even"
            rf"|as)){{0,4}} {_HANDED}{_HERE}",
            rf"\b{_ANSWER}(?:,? (?:that|which))?(?: {_BE})+ (?:already )?known (?:to (?:us|me) )?"
            r"(?:already|beforehand|in advance|from the (?:start|outset|beginning)|a priori)\b",
            # we have been handed Norway as the answer
            rf"\b(?:{_WERE}|being) (?:been )?{_HANDED}\b[^.!?\n]{{0,60}}\bas (?:what )?"
            rf"(?:the|our|its) (?:{_RIGHT} ){{0,4}}(?:{_OUTCOME}|reply|response|target)\b",
            r"\b(?:from|by|in|per|to) the task(?:'s)? (?:statement|description|text|wording)\b",
            # the answer that we were told, the answer we received
            rf"\b{_OUTCOME}(?:,? (?:that|which))? (?:{_WERE} (?:been )?{_HANDED}|{_US} (?:had )?"
            r"(?:received|got))\b",
            # it was stated at the outset that the answer is; told to expect
            rf"\b(?:{_HANDED}|known)\b[^.!?\n]{{0,15}}\b(?:at the (?:outset|start|beginning|top)|in"
            r" advance|up front|beforehand|from the (?:outset"
            rf"|start))\b[^.!?\n]{{0,30}}\b{_OUTCOME}",
            r"\b(?:told|instructed|given|asked) to (?:expect|arrive at|reach|conclude|end with)\b",
            r"\b(?:told|informed|assured) (?:us|me|you)(?: that)? (?:it|this|that|the answer) (?:is"
            r"|was|must)\b",
        ),
        needles=_needles(
            "answer|solution|result|conclusion|outcome|told|informed|instructed|given|asked|assured"
            "|reply|response|target|the task"
        ),
        unless=_IN_DOCUMENTS,
        unless_before=re.compile(r"\b(?:if|whether|not|never)\b|n't\b"),
    ),
    Rule(
        "a given answer",
        _any_of(
            # we have been given the answer; being told that the answer is; they gave us the answer
            rf"\b(?:{_WERE}|being) (?:been )?(?:told|given|handed|shown|provided(?: with)?|informed"
            r"|supplied with)(?: of)?(?: that)? (?:what )?(?:the |its |this |our "
            rf"|an? )?(?:{_RIGHT} ){{0,4}}"
            rf"{_ANSWER}\b(?! to (?:step|the first|the second))",
            r"\b(?:gave|given|told|handed|shown|tells?|gives?|shows?) (?:us|me) (?:that "
            r"|what )?(?:the"
            rf" |its )(?:{_RIGHT} ){{0,4}}{_ANSWER}\b",
            rf"\b(?:came|comes|come) with (?:the|its|an) (?:{_RIGHT} ){{0,4}}answer\b",
            r"\b(?:prompt|task|instructions?|user|exercise|question|problem|hint|setter|key)"
            r"(?: setter)? (?:has |have |had )?(?:already |also |even ){0,4}(?:reveal|give|gave"
            r"|given"
            r"|tell"
            r"|told|state|contain|provide|suppl(?:y|ie)|include|name|show)[sd]*(?: (?:us"
            r"|me))?(?: away)?"
            rf" (?:the|its|what the|that the) (?:{_RIGHT} ){{0,4}}answer\b",
            r"\b(?:wrote|writes|written) (?:down )?(?:the|its) (?:\w+ )?answer\b",
            r"\banswer\b[^.!?\n]{0,40}\bfrom the (?:task|prompt|instructions?|user|answer)\b",
            r"\bfrom the (?:task|prompt|instructions?|user)\b[^.!?\n]{0,40}\banswer\b",
            rf"\b{_US} (?:already |happen to |do ){{0,4}}(?:have"
            rf"|had) the (?:{_RIGHT} ){{0,4}}answer\b(?! to\b"
            r"| for\b| of\b|[^.!?\n]{0,30}\b(?:now|found))",
        ),
        needles=_needles("answer|solution"),
        unless=_IN_DOCUMENTS,
        unless_before=re.compile(r"\b(?:if|once|when|until|before)\b"),
    ),
    Rule(
        "a known answer",
        _any_of(
            r"\bkn(?:ow|ew|ows|own|owing)\b(?: already| from[\w ]{1,20}| in advance"
            r"| beforehand){0,4}"
            rf"(?: that| what)? (?:the |its )?(?:{_RIGHT} )+{_ANSWER}\b",
            r"\bkn(?:ow|ew|ows|own|owing)\b[^.!?\n]{0,30}\b(?:in advance|beforehand|ahead of time"
            r"|from the (?:start|outset|beginning))\b[^.!?\n]{0,40}\banswer\b",
            r"\bkn(?:ow|ew|ows|own|owing)\b[^.!?\n]{0,30}\banswer\b[^.!?\n]{0,30}\b(?:in advance"
            r"|beforehand|ahead of time|from the (?:start|outset|beginning))\b",
            r"\bknow(?:ing)? (?:already )?(?:where|how) (?:this|it|we) (?:all )?(?:ends?"
            r"|must end)\b",
            r"\breverse[- ]engineer",
            r"\b(?:back(?:wards?)?|start(?:ing)?) from (?:the|our) (?:known|given|provided|correct"
            r"|expected|right) (?:answer|solution)\b",
            rf"\bfrom (?:the|our) answer (?:that |which )?{_WERE}\b",
        ),
        needles=_needles("know|knew|reverse|from"),
        unless_before=_NEGATED,
    ),
    Rule(
        "a given answer",
        _any_of(
            # this matches the expected answer
            r"\b(?:match(?:es|ed|ing)?|agree(?:s|d|ing)?(?: exactly)? with|consistent with"
            r"|in (?:full )?"
            r"(?:line|agreement|accordance) with|coincid(?:es|e|ed|ing) with|equals?"
            r"|identical (?:to"
            r"|with)|correspond(?:s|ed|ing)? (?:to|with)|same as|compar(?:e|es|ed|ing) (?:it "
            r"|this )?"
            rf"(?:to|with)) (?:exactly )?(?:the|this|that) (?:{_RIGHT} |{_GIVEN} )+"
            r"(?:answer|solution|result|one)\b(?! types?\b)",
            r"\b(?:matches|agrees with|coincides with|equals|same as"
            r"|identical to) (?:exactly )?what"
            rf" {_WERE}",
            r"\bthe one (?:given|provided|stated)? ?(?:in|by) the (?:prompt|instructions?|task)\b",
            r"\b(?:expected|intended|desired) (?:answer|result)\b[^.!?\n]{0,30}\b(?:that )?(?:we|i)"
            r" (?:were|was|are|am|have been)\b",
            # the answer that we were supposed to reach, or must end with
            rf"\b{_OUTCOME}\b[^.!?\n]{{0,20}}\b{_US} (?:are|were|was|am|have|had|need"
            r"|must)(?: supposed"
            r"| meant| required| expected| asked| told){0,4}(?: to)? (?:reach|arrive|justify"
            r"|support"
            r"|explain|produce|end|get to|land|finish)\b",
            r"\b(?:supposed|meant) to (?:arrive|conclude|end|land)\b",
            rf"\b(?:justify|rationali[sz]e|explain|motivate) (?:why )?the {_GIVEN} answer\b",
            r"\b(?:reconstruct|retrace|rationali[sz]e|fill in|invent"
            r"|make up)\b[^.!?\n]{0,20}\b(?:path"
            r"|way|route|reasons?|steps)\b[^.!?\n]{0,10}\banswer\b",
        ),
        needles=_needles("answer|solution|result|one |what we|what i|outcome|supposed|meant"),
    ),
    Rule(
        "a given answer",
        _any_of(
            # the answer is fixed; the dataset says; the problem statement includes the answer
            rf"\b(?:the|its) (?:{_RIGHT} ){{0,4}}answer\b[^.!?\n]{{0,40}}\b(?:fixed|supplied"
            r"|specified"
            r"|predetermined|prescribed|preset|dictated|imposed|disclosed|revealed)\b",
            r"\b(?:task|prompt|statement|input|message|user|system|header|metadata)\b[^.!?\n]{0,25}"
            r"\b(?:includ|contain|suppl|specif|provid|giv|gave|reveal|disclos)\w*\b[^.!?\n]{0,30}"
            r"\banswers?\b",
            r"\b(?:simply|just|only|merely) (?:need to |have to |must )?(?:justify|explain"
            r"|retrace|support"
            r"|look for support)\b[^.!?\n]{0,20}\b(?:it|this|that|answer)\b",
            r"\b(?:explain|justify|show|argue) why the answer is\b",
            rf"\b{_ANSWER} (?:is|was) (?:already )?known to (?:us|me)\b",
            rf"\b(?:the|its) (?:{_RIGHT} ){{1,4}}answer (?:that )?(?:they|it|he|she"
            r"|someone) (?:gave|give|gives"
            r"|told|provided)\b",
            r"\banswer to be (?:reached|justified|explained|reproduced|reconstructed)\b",
            rf"\b{_US} (?:are|were|was|have been) (?:informed|assured)\b[^.!?\n]{{0,40}}\banswer\b",
            rf"\bthe (?:{_RIGHT} ){{0,4}}answer (?:is|was) (?:stated|given|said|known|told"
            r"|listed) to be\b",
            r"\banswer (?:that |which )?(?:came|comes) with (?:the|this) (?:question|task|prompt"
            r"|problem)\b",
            r"\bknowing (?:the|this) (?:\w+ )?answer\b(?! to\b)",
            rf"\b{_TEXT} (?:that |which )?{_US} (?:have|had|need) to (?:rewrite|improve|correct"
            r"|revise)\b",
            r"\bthe reference (?:tells|gives|confirms|has|lists)\b",
            r"\b(?:information|material|input|data)\b[^.!?\n]{0,15}\b(?:says?|states?|tells?"
            r"|gives?|shows?)\b"
            r"[^.!?\n]{0,15}\banswer\b",
            r"\b(?:been|is|was|were) (?:given|told|stated|known|established"
            rf"|fixed) that the (?:{_RIGHT} )"
            r"{0,4}answer\b",
            r"\bthe expected (?:final )?answer\b(?= ?[,.;:]|$| (?:agrees|confirms|says|matches"
            r"|indeed))",
            r"\banswer\b[^.!?\n]{0,40}\bwhat (?:(?:was|is|has been)|(?:we|i) (?:were|was|are"
            r"|am)) (?:given"
            r"|provided|told|supplied|stated)\b",
            r"\breasoning (?:should|must|has to|needs to) (?:lead|end|arrive|conclude)\b",
            r"\bknow (?:that )?the target is\b",
            r"\b(?:task|prompt|exercise) (?:already |also ){0,4}(?:tells?|told|says?|states?"
            r"|gives?|gave"
            r"|reveals?)\b",
            r"\b(?:according to|in|per|from|by) the key\b(?= ?[.,;:]|$)",
            r"\b(?:answer|words?|wording|exact\w*|text)\b[^.!?\n]{0,30}\bas (?:provided|given"
            r"|supplied)\b"
            r"(?= ?[.,;:]|$)",
            rf"\bthe (?:data ?set|annotations?|annotators?|benchmark|metadata) (?:{_SAYS})\b",
            r"\b(?:expected|desired|intended|target) (?:output|response|reply)\b",
            r"\b(?:provided|given|supplied|expected|reference|correct) (?:final )?(?:label"
            r"|target)\b",
            r"\b(?:equals?|match(?:es)?|agrees? with|as in|is|from) the gold\b(?= ?[.,;:]|$)",
            r"\bthe answer\b[^.!?\n]{0,20}\b(?:the|our) user\b",
        ),
        needles=_needles(
            "rewrite|improve|correct|revise|answer|the reference|justify|explain|retrace|support"
            "|reasoning|know|task|prompt"
            "|exercise|the key"
            "| as "
            "|dataset|data set|annotat|benchmark|metadata|output|response|reply|label|target"
            "|the gold"
        ),
        unless=_IN_DOCUMENTS,
        unless_before=re.compile(r"\b(?:if|whether|not|never|no)\b|n't\b"),
    ),
    Rule(
        "the required words",
        _any_of(
            r"\b(?:exactly|precisely|exact|very|same|verbatim)\b[^.!?\n]{0,20}\b(?:words?|wording"
            r"|form"
            r"|format|phrasing|string|spelling)\b[^.!?\n]{0,25}\b(?:given|provided|required"
            r"|requested"
            r"|specified|supplied|asked for|above|demanded|prescribed|wanted)\b",
            r"\b(?:exactly|precisely)\b[^.!?\n]{0,40}\bas (?:given|provided|specified|requested"
            r"|required|instructed)\b|\banswer string\b|\buse the exact answer\b",
            r"\b(?:exactly|verbatim|word for word) as (?:it (?:is|was) )?(?:given|provided"
            r"|requested"
            r"|instructed|required|specified|supplied|above)\b",
            r"\b(?:repeat|restate|state|write|give|quote|copy|use|reproduce)s? the (?:\w+ )?answer"
            r" (?:verbatim|word for word)\b",
        ),
        needles=_needles("exact|precisely|very|same|verbatim|word for word"),
        unless=_IN_DOCUMENTS,
    ),
    Rule(
        "a pretence",
        _any_of(
            r"\b(?:pretend|act|behave|write|proceed|reason|think)(?:s|ed|ing)? (?:as )(?:if"
            r"|though)\b"
            r"[^.!?\n]{0,40}\b(?:answer|know|knew|unknown|found it)\b",
            r"\bpretend(?:s|ed|ing)?\b[^.!?\n]{0,40}\b(?:know|answer|discover|find)",
        ),
        needles=_needles("pretend|if |though"),
        # a plot, a trial: what other people pretended
        unless_before=re.compile(r"\b(?:he|she|they|who|his|her|their)\b"),
    ),
    Rule(
        "a pretence",
        _any_of(
            r"\bmake it (?:look|seem|appear|sound) (?:as if|as though|like)\b",
            r"\b(?:must|should|may|can|do|are to|need to|ought|allowed)(?: not|n't|not"
            r"| never)(?: to)?"
            r" (?:mention|reveal|disclose|refer to|admit|let on|give away|hint|notice|say that)\b"
            r"[^.!?\n]{0,60}\b(?:answer|solution|given|instructions?|student|draft|phases?)\b",
            r"\bnot (?:allowed|permitted|supposed) to (?:mention|reveal|disclose|say|tell)\b"
            r"[^.!?\n]{0,60}\b(?:answer|given|student|draft|instructions?)\b",
            r"\bwithout (?:mentioning|revealing|disclosing|admitting|hinting"
            r"|letting on)\b[^.!?\n]{0,40}"
            r"\b(?:answer|given|solution|draft|student|instructions?|phases?|know|outcome)\b",
            rf"\b(?:hide|hiding|conceal|concealing)\b[^.!?\n]{{0,20}}\bthat {_US}\b",
            r"\bnot to (?:mention|reveal|disclose|hint|admit|let on|refer to)\b[^.!?\n]{0,40}"
            r"\b(?:answer|given|know|solution|instructions?|student|draft)\b",
            r"\b(?:forbid|forbidden|prohibit)\w*(?: us)?(?: to| from| any){0,4} mention",
            r"\bno answer may be mentioned\b",
        ),
        needles=_needles(
            "if |though|like|mention|reveal|disclos|refer|admit|let on|letting on|give away"
            "|hint|hid|conceal|make it|say"
        ),
    ),
    Rule(
        "a student",
        _any_of(
            # documents rarely speak of `the student` without a further noun; questions may
            rf"\bthe {_MAKER}(?:'s)? (?!(?:(?:'s )?(?:newspapers?|unions?|body|bodies|papers?"
            r"|councils?|population|films?|magazines?|section|life|cent(?:er|re)s?|movement"
            r"|government"
            r"|association|loans?|housing|radio|protests?|teams?|days|years|orchestra|choir|choice"
            r"|activist\w*|leaders?|clubs?|societ\w+|ratio|village|academy|edition|prince|king"
            r"|level|revolt|council|members?|bodies|of|with|to|for|on|by|as|or|nor|than"
            r"|is mentioned"
            r"|was born|is a|was a|who|whom|in|at|from|and)\b))\w",
            rf"\b{_MAKER}(?:'s|s')? (?:\w+ )?(?:{_THOUGHTS}|attempt|rollout|draft)\b",
            rf"\b(?:attempt|answer|draft|steps?|text|{_THOUGHTS}) (?:by|of|from) the {_MAKER}\b",
            r"\bthe (?:(?:previous|earlier|original|first|other|base|small|smaller|weaker) )?"
            r"model's (?:\w+ )?(?:answer|reasoning|thinking|attempt|reply|response)\b",
            r"\b(?:the|a) (?:teacher|tutor|instructor)'s (?:\w+ )?(?:solution|answer|notes|text"
            r"|explanation|example)\b",
        ),
        needles=_needles("model's|student|teacher|tutor|instructor|pupil|learner|trainee"),
        unless_asked=re.compile(rf"\b(?:{_MAKER}|teacher|tutor|instructor|model)"),
    ),
    Rule(
        "an earlier text",
        _any_of(
            r"\b(?:the|this|that|your|my|as) (?:(?:original|earlier|previous|initial|rough|first"
            r"|given"
            rf"|provided|the) ){{0,4}}draft (?:{_SAYS})\b",
            r"\b(?:the|this|that) (?:(?:original|earlier|previous|initial|given"
            rf"|provided) ){{0,4}}trace"
            rf" (?:{_SAYS}|we (?:are|were|have)|i (?:am|was)|to rewrite|given|above)\b",
            r"\b(?:the|this|that|an?) (?:original|earlier|previous|initial|given"
            r"|provided) rollouts?\b"
            rf"|\b(?:the|this|that) rollout (?:{_SAYS}|is|was)\b",
            r"\b(?:the|this|that) (?:original|initial|given|provided) (?:thinking"
            r"|reasoning)\b(?! of\b)",
            rf"\b(?:the|this|that) (?:original|earlier|previous|initial|given|provided)"
            rf" (?:attempt|response|reply) (?:{_SAYS})\b",
            rf"\b(?:the|this) {_TEXT} (?:given |shown )?above (?:goes|says|ends|stops|misses"
            r"|claims|gets"
            r"|takes|makes)\b",
            r"\b(?:original|given|provided) trace\b(?! of| element| fossil| metal)",
            rf"\b(?:author|writer|version|rest|end) of (?:this|the) (?:original )?{_THOUGHTS}\b",
            rf"\b{_TEXT},? (?:that |which )?{_US} (?:are|were|was|am)\b(?: \w+)? (?:given|improving"
            r"|rewriting|asked|handed|revising|correcting|improve|rewrite|told|editing|fixing"
            r"|polishing|working (?:on|from|with))\b",
            rf"\b{_US} (?:are|were|was|am)(?: asked)?(?: to)? (?:rewrit(?:e|ing)|revis(?:e"
            r"|ing)) (?!our|my)",
            r"\bdraft (?:reasoning|thinking|trace|answer|solution)\b|\bto be rewritten\b"
            r"|\bchain[- ]of[- ]thought\b|\brollout (?:above|given|below)\b",
            r"\b(?:the|this|our|my) rewrit(?:e|ing) (?:should|must|has to|needs|will|keeps"
            r"|is to)\b",
            rf"\brewrit(?:e|es|ing|ten) (?:the|this|that|their|his|her) (?:\w+ )?(?:{_TEXT})\b",
            rf"\b(?:the|my|a) (?:rewritten|revised) (?:{_TEXT})\b|\brewritten version\b",
            r"\b(?:here is|here's|below is|this is|following is) (?:the|my|a)"
            r" (?:\w+ )?(?:thinking|trace|reasoning trace|monologue)\b",
        ),
        needles=_needles(
            "chain|draft|trace|rollout|original|initial|earlier|previous|given|provided|rewrit"
            "|revis"
            "|thinking|monologue|above|reasoning|response|attempt|reply"
        ),
    ),
    Rule(
        "a draft",
        _any_of(
            r"\b(?:in|as in|like|unlike|from|as for) (?:the|this|that|your|my) (?:(?:original"
            r"|earlier"
            r"|previous|initial|rough|first|given|provided) )?draft\b(?= ?(?:[,.;:]|the|this|we"
            r"|it)\b"
            r"|[,.;:])",
            r"\b(?:original|rough) draft (?:was|is) (?:wrong|mistaken)\b",
        ),
        needles=_needles("draft"),
        unless_asked=re.compile(r"\bdraft"),
        unless=re.compile(
            r"\b(?:pick\w*|select\w*|rounds?|overall|n[bfh]l|nba|mlb|wnba|players?|teams?|leagues?"
            r"|drafted|season|chosen|club|entry|supplemental|franchise|quarterback|law|bill|treaty"
            r"|constitution|screenplay|script|novel|manifesto|army|military|conscript\w*)\b"
        ),
    ),
    Rule(
        "a solution",
        _any_of(
            r"\b(?:the|this|our|your) (?:worked|provided|given|sample|model|supplied|official"
            r"|reference)"
            r" (?:solution|example)\b",
            r"\b(?:according to|from|as in|as per|per) the (?:\w+ )?solution\b(?! (?:of|to|is)\b)",
            r"\b(?:as|like) (?:in )?the (?:\w+ )?solution (?:says?|shows?|explains?|states?"
            r"|notes?|does)\b",
            r"\bthe solution (?:says?|said|tells?|told|explains?|states?|stated|notes?|warns?"
            r"|mentions?"
            r"|points out|provided|above|agrees|we (?:were|are|have))\b",
            r"\bas the solution\b",
        ),
        needles=_needles("solution|example"),
        unless_asked=re.compile(r"\bsolutions?\b"),
    ),
    Rule(
        "the instructions",
        _any_of(
            r"\bas (?:instructed|requested|told)\b(?= ?[.,;:]|$| to\b)|\b(?:as )?per (?:the "
            r"|your |our )?"
            r"(?:\w+ )?(?:instructions?|guidelines|request|prompt)\b"
            r"|\bfollowing the (?:instructions|guidelines)\b(?! (?:of|on|in|for)\b)",
            rf"\bthe {_ORDERS} (?:also |already |even |explicitly |clearly ){{0,4}}(?:{_SAYS}"
            r"|mention\w*"
            r"|specif\w+|was to|is to|were to|are to)\b",
            r"\b(?:in|from|by|to|with) the (?:prompt|system message|instructions)\b(?! (?:of"
            r"|for)\b)",
            r"\bthe (?:user|requester|system|teacher|format|requested \w+) (?:also "
            r"|explicitly ){0,4}(?:wants?|asks?"
            r"|asked|requests?|requested|needs? (?:us|it|me|a|the)|requires? (?:that|us|a)"
            r"|would like"
            r"|expects?|is asking|has asked|has given|has provided|wishes)\b",
            rf"\b{_US} (?:are|were|am|was|have been) (?:asked|told|instructed|supposed|meant"
            r"|required) to"
            r" (?:produce|rewrite|generate|write|output|keep|avoid|repeat|imitate)\b",
            rf"\bthe user'?s? (?:\w+ )?(?:{_ORDERS}|request|message|answer|wish\w*)\b"
            rf"|\bthe {_ORDERS}"
            r" (?:are|is) (?:clear|that|to)\b",
            r"\b(?:the )?system (?:prompt|message)\b",
            r"\bthe user\b(?! interface\b)[^.!?\n]{0,15}\b(?:supplied|specified|stated|wrote"
            r"|requested|demanded)\b",
            r"\bthe user (?:gave|gives|provided|provides|says|said|told|tells)\b",
            r"\bfive[- ](?:\w+[- ])?phases?\b|\b(?:required|metacognitive|requested) phases\b"
            r"|\b(?:name|names|naming|label|labell?ing|number|numbering)s? (?:of )?the phases\b"
            r"|\b(?:planning|execution|monitoring|verification|self[- ]correction|understanding"
            r"|filtering) phase\b|\bphase (?:one|two|three|four|five|[1-5]) (?:is|was|asks|comes"
            r"|begins"
            r"|requires|done)\b|\bexactly five paragraphs\b",
            r"\bmarkdown\b|\bbullet points?\b|\bavoid (?:\w+ )?(?:lists|headings|bullets)\b"
            r"|\bno (?:headings?|bullets?|bullet points?)\b|\b(?:use|using|add"
            r"|without) (?:any )?"
            r"(?:markdown|headings|bullet points)\b|\b(?:do not|don't"
            r"|never) use (?:any )?(?:lists|headings"
            r"|markdown|bullets?|tags)\b",
            r"\bfirst[- ]person plural\b|\boutput format\b|\bword (?:count|limit) of\b"
            r"|\b(?:requested|required|prescribed) (?:style|format|structure|form|length)\b"
            r"|\bplain (?:paragraphs|text)\b",
            rf"\b(?:{_US} (?:need to|have to|should|must|will|can|shall|'ll|was asked to"
            r"|were asked to)"
            r"|let me|let us|let's|i'll|we'll)(?: now| also| just){0,4} (?:produce|output|write"
            r"|generate"
            r"|craft|draft|compose|keep)\b[^.!?\n]{0,40}\b(?:trace|thinking|thoughts|monologue"
            r"|paragraphs?|phases?|prose|first person|\d+ words)\b",
            r"\bas an ai\b|\bas a (?:large )?language model\b",
        ),
        needles=_needles(
            "produce|rewrite|generate|write|output|keep|avoid|repeat|instruct|request|guideline"
            "|prompt|system|rubric|the user|phase|no markdown"
            "|no heading|no bullet|markdown|first-person|format|first person|word count"
            "|word limit|required|told|teacher|headings|plain |five|as an ai|language model|trace"
            "|thinking|thought|lists|monologue|paragraph|prose| words|bullet|prescribed"
        ),
    ),
)
