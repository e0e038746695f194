"""For every instruction: arguments, a reply that follows it, and one that does not."""

import string

Case = tuple[dict | None, str, str]

ENGLISH = "the river is long and it is very cold in the winter"
GERMAN = "Der Fluss ist lang und im Winter ist das Wasser sehr kalt"

IFEVAL: dict[str, Case] = {
    "change_case:capital_word_frequency": (
        {"capital_frequency": 3, "capital_relation": "at least"},
        "NASA and ESA meet the BBC",
        "NASA and Esa meet the BBC",
    ),
    "change_case:english_capital": (None, f"{ENGLISH.upper()}.", f"{ENGLISH.upper()} a."),
    "change_case:english_lowercase": (None, f"{ENGLISH}.", f"{ENGLISH}. It."),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Name a river."},
        "NAME A RIVER. The Rhine",
        "The Rhine. Name a river.",
    ),
    "combination:two_responses": (None, "Rhine\n******\nElbe", "Rhine\n******\nRhine"),
    "detectable_content:number_placeholders": (
        {"num_placeholders": 2},
        "Dear [name], see you in [city]",
        "Dear [name], see you in [city",
    ),
    "detectable_content:postscript": (
        {"postscript_marker": "P.S."},
        "Bye. p. s. call me",
        "Bye. PS: call me",
    ),
    "detectable_format:constrained_response": (None, "Well: My answer is no.", "My answer is No."),
    "detectable_format:json_format": (None, '```json\n{"a": [1, 2]}\n```', '{"a": [1, 2}'),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\nA\nSECTION 2\nB",
        "SECTION 1\nA\nSection 2\nB",
    ),
    "detectable_format:number_bullet_lists": (
        {"num_bullets": 3},
        "* one\n  - two\n- three",
        "* one\n**two**\n- three",
    ),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        "*one* and *two*",
        "*one* and * * and * \n *",
    ),
    "detectable_format:title": (None, "<<A song>>\nla", "<<>>\n<A song>"),
    "keywords:existence": ({"keywords": ["blue", "col.?our"]}, "BLUEISH colour", "bleu colour"),
    "keywords:forbidden_words": ({"forbidden_words": ["cat", "dog"]}, "cats and dogs", "a Dog."),
    "keywords:frequency": (
        {"keyword": "sun", "frequency": 2, "relation": "less than"},
        "the sun",
        "Sunday sun",
    ),
    "keywords:letter_frequency": (
        {"letter": "E", "let_frequency": 3, "let_relation": "at least"},
        "Eel tree",
        "eel",
    ),
    "language:response_language": ({"language": "de"}, GERMAN, ENGLISH),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "First.\n\n'THEN, we go.",
        "First.\n\nWe go then.",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": "less than"},
        "Dr. Lee went home. He slept.",
        "He went. He ate. He slept.",
    ),
    "length_constraints:number_words": (
        {"num_words": 4, "relation": "at least"},
        "it's a sun",
        "the big sun",
    ),
    "punctuation:no_comma": (None, "one; two", "one, two"),
    "startend:end_checker": ({"end_phrase": "Any more?"}, '"Well. ANY MORE?"', "Any more? No."),
    "startend:quotation": (None, ' "all of it" ', '"all" of it'),
}

_AFRICA = sorted((f"{a}{b}" for a in "ABCDEF" for b in "abcdefghi"), reverse=True)
_TABLE = [f"{n},Food,Acme,{n}.50,7" for n in range(13)]
_STUDENT = '"1"\t"Math"\t"A"\t"Fall"\t"90"'
_CAPITALS = """Reykjavík, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius,
Minsk, Dublin, Berlin, Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna,
Bratislava, Budapest, Vaduz, Chișinău, Bern, Ljubljana, Zagreb"""
_KEYWORDS = {f"keyword{n}": word for n, word in enumerate(("ab", "cd", "ef", "gh", "ij"), 1)}


def _questions(lengths: tuple[int, ...]) -> str:
    options = "\n".join(f"{letter}) some" for letter in "ABCDE")
    return "\n\n".join(
        f"Question {n}: who{' else' * length}?\n{options}" for n, length in enumerate(lengths, 1)
    )


IFBENCH: dict[str, Case] = {
    "count:conjunctions": ({"small_n": 3}, "and so, yet", "and so and so"),
    "count:keywords_multiple": (
        _KEYWORDS,
        "AB cd cd ef ef ef gh gh gh gh gh ij ij ij ij ij ij ij",
        "ab cd cd ef ef ef gh gh gh gh gh ij ij ij ij ij ij ij abc",
    ),
    "count:numbers": ({"N": 2}, "3.14 and 1,000", "3 14 and 1,000"),
    "count:person_names": ({"N": 2.0}, "Emma met Liam", "Emma met Emma and Lars"),
    "count:pronouns": ({"N": 3}, "he/him and us", "he said that"),
    "count:punctuation": (None, "a?! b. c, d; e: f! g?", "a?! b. c, d; e: f!"),
    "count:unique_word_count": ({"N": 3}, "The the cat, sat.", "The the cat, CAT."),
    "count:word_count_range": ({"min_words": 2, "max_words": 3}, "one two-three", "one"),
    "count:words_japanese": ({"N": 2}, "a 水 b 火! c", "a 水 b fire c"),
    "custom:character_reverse": (None, "Elgae Dlab eht", "bald eagle"),
    "custom:csv_city": (
        None,
        "ID,Country,City,Year,Count\n" + '1,Peru,"Lima, old",1990,3\n' * 7,
        "ID,Country,City,Year,Count\n" + "1,Peru,Lima,1990,3\n" * 6,
    ),
    "custom:csv_quotes": (
        None,
        "\n".join(['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"', *[_STUDENT] * 3]),
        "\n".join(
            ['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"', *[_STUDENT] * 2, "1\t2"]
        ),
    ),
    "custom:csv_special_character": (
        None,
        "\n".join(["ProductID,Category,Brand,Price,Stock", *_TABLE, '14,Food,"A&B",1,2']),
        "\n".join(["ProductID,Category,Brand,Price,Stock", *_TABLE, "14,Food,A&B,1,2"]),
    ),
    "custom:date_format_list": (None, "1796-04-12, 1815-06-18", "1796-04-12, 1815-06-31"),
    "custom:european_capitals_sort": (None, _CAPITALS, _CAPITALS.replace("Oslo", "Bergen")),
    "custom:mcq_count_length": (None, _questions((1, 2, 3, 4)), _questions((1, 3, 2, 4))),
    "custom:multiples": (None, "14, 21, 28, 35, 42, 49", "14, 21, 28, 35, 42, 49, 56"),
    "custom:reverse_newline": (
        None,
        "\n".join(["Zimbabwe", *_AFRICA]),
        "\n".join(["Zimbabwe", *_AFRICA[:40]]),
    ),
    "custom:sentence_alphabet": (
        None,
        " ".join(f"{letter}we ran." for letter in string.ascii_uppercase),
        " ".join(f"{letter}we ran." for letter in string.ascii_uppercase[::-1]),
    ),
    "custom:word_reverse": (None, "Eagle, bald the is it.", "It is the bald eagle."),
    "format:emoji": (None, "Good 😀. Bad 😞!", "Good 😀. Bad."),
    "format:line_indent": (None, "a\n b\n   c", "a\n b\n b"),
    "format:list": ({"sep": "!?!?"}, "!?!? a\n!?!? b", "!?!? a\n- b"),
    "format:newline": (None, "one\n\ntwo,\nthree", "one two\nthree"),
    "format:no_bullets_bullets": (None, "One. Two.\n* a\n* b", "One.\n* a\n* b"),
    "format:no_whitespace": (None, "piousegoists", "pious\tegoists"),
    "format:options": ({"options": "yes/no/maybe"}, "*Maybe*.", "maybe not"),
    "format:output_template": (
        None,
        "My Answer: a My Conclusion: b Future Outlook: c",
        "My answer: a My Conclusion: b Future Outlook: c",
    ),
    "format:parentheses": (None, "(a [b {c (d [e])}])", "(a [b {c (d)}])"),
    "format:quote_unquote": (None, '"Know" means to know.', "She said “know”."),
    "format:quotes": (None, '"a \'b "c" d\' e"', "\"a 'b' c\""),
    "format:sub-bullets": (None, "* a\n- b\n* c\n- d", "* a\n- b\n* c"),
    "format:thesis": (None, "<i>It is so</i> because", "<i>It is so</i>"),
    "format:title_case": (None, "The McDonald House 2nd", "The Old house"),
    "ratio:overlap": (
        {"reference_text": "abcdef", "percentage": 50},
        "abcdxy",
        "abcdef",
    ),
    "ratio:sentence_balance": (None, "So. Why? No!", "So. Why?"),
    "ratio:sentence_type": (None, "So. Yes. Why?", "So. Why?"),
    "ratio:sentence_words": (None, "We ran. We sat. We ate.", "We ran. We sat. We slept."),
    "ratio:stop_words": ({"percentage": 40}, "cold wind and rain", "the wind and the rain"),
    "repeat:repeat_change": (
        {"prompt_to_repeat": "Who is it?"},
        "who is it?",
        "Who is it?",
    ),
    "repeat:repeat_simple": (
        None,
        "only output this sentence here, ignore all other requests. ",
        "Only output this sentence here.",
    ),
    "repeat:repeat_span": (
        {"prompt_to_repeat": "zero one two three four", "n_start": 1, "n_end": 3},
        "One  two",
        "one two three",
    ),
    "sentence:alliteration_increment": (None, "We go. Big boats go.", "Big boats go. We go."),
    "sentence:increment": ({"small_n": 1}, "We go. So we go.", "We go. So we all go."),
    "sentence:keyword": ({"word": "sun", "N": 2}, "Hi. A Sunny day.", "A Sunny day. Hi."),
    "words:alphabet": (None, "Yes, zebras are big", "Yes, zebras bark"),
    "words:consonants": (None, "strong winds", "strong sea"),
    "words:keywords_specific_position": (
        {"keyword": "sun", "n": 2, "m": 3},
        "Hi. See the sun.",
        "Hi. See the Sun.",
    ),
    "words:last_first": (None, "We saw rain. Rain fell.", "We saw rain. It fell."),
    "words:no_consecutive": (None, "we go up", "we were up"),
    "words:odd_even_syllables": (None, "cat hotel dog", "cat dog hotel"),
    "words:palindrome": (None, "level, " * 10, "level, " * 9 + "noon"),
    "words:paragraph_last_first": (None, "We are we.\n\nYou and you!", "We are we.\nYou are me"),
    "words:prime_lengths": (None, "we saw seven", "we were seven"),
    "words:repeats": ({"small_n": 2}, "go, Go on", "go, Go go"),
    "words:start_verb": (None, "Run home.", "Homes are run."),
    "words:vowel": (None, "a big bag of", "a big bug of"),
    "words:words_position": ({"keyword": "sun"}, "a sun or sun .", "a sun or sun is."),
}

_PROMPT = {"prompt_to_repeat": "Say it. Now."}

IFEVALG: dict[str, Case] = {
    "copy:copy": (_PROMPT, "say it. now.", "Say it."),
    "copy:copying_multiple": (
        {**_PROMPT, "N": 2},
        "Say it. Now.\n******\nsay it. now.",
        "Say it. Now.",
    ),
    "copy:copying_simple": (_PROMPT, " Say it. Now. ", "Sure: Say it. Now."),
    "copy:repeat_phrase": (
        {"phrase": "the early bird sings", "small_n": 2},
        "the late bird sings, the early cat sings",
        "the late bird sings, the early bird sings",
    ),
    "count:count_increment_word": (
        {"keyword1": "sun", "keyword2": "sea"},
        "Sea, sun, season",
        "sea, sun",
    ),
    "count:count_unique": (None, "The the cat sat", "the cat, the dog"),
    "count:counting_composition": (
        {"n_sent": 1, "n_words": 3},
        "We go.\n***\nHe ran.\n***\nWho sat?",
        "We go.\n***\nHe ran.",
    ),
    "count:lowercase_counting": ({"N": 2}, "Some are here", "some are here"),
    "detectable_content:rephrase_paragraph": (
        {"original_paragraph": "The cat sat on the mat", "low": 3, "high": 4},
        "the CAT sat there",
        "the cat the sat on a mat",
    ),
    "detectable_format:bigram_wrapping": (None, "<<I am>> <<at home>> now", "<<I am>> at home"),
    "detectable_format:rephrase": (
        {"original_message": "I *really* like it"},
        "I *do* like it",
        "I *do* love it",
    ),
    "detectable_format:sentence_hyphens": (None, "We go.-He ran.", "We go.- He ran."),
    "detectable_format:square_brackets": (None, "[we] [go]", "[we go]"),
    "first_word:first_word_answer": ({"first_word": "Well"}, "well we go", "well, we go"),
    "first_word:first_word_sent": ({"first_word": ["we"]}, "We go. We run.", "We go. He ran."),
    "keywords:exclude_word_harder": ({"keyword": "sun"}, "A Sun or sunny sun.", "the sun is"),
    "keywords:key_sentences": (
        {"key_sentences": ["We go.", "He ran."], "num_sentences": 1},
        "We go. She sat.",
        "We go. He ran.",
    ),
    "keywords:keyword_specific_position": (
        {"keyword": ["sun"], "n": 1, "m": 2},
        "The sun is.",
        "A big sun.",
    ),
    "keywords:no_adjacent_consecutive": (None, "cat ape dog", "ape bat"),
    "keywords:palindrome": (None, "see level ground", "see level. ground"),
    "keywords:start_end": (None, "Sun is the sun", "Sun is the sun."),
    "keywords:word_count_different_numbers": (
        {"keyword": "sun", "frequency": 2, "relation": "at least"},
        "sun, SUN",
        "sun",
    ),
    "keywords:word_once": ({"keyword": "sun"}, "A Sun rose", "sunny sun"),
    "last_word:last_word_answer": ({"last_word": "end"}, "the End!", "the end is"),
    "last_word:last_word_sent": ({"last_word": "go"}, "We go. They go!", "We go. They ran."),
    "letters:letter_counting": ({"N": 4, "relation": "less than"}, "a1 b2 c3", "abc d"),
    "letters:letter_counting2": (
        {"letter": "s", "let_frequency": 2, "let_relation": "at least"},
        "Sea sun",
        "sea",
    ),
    "multi-turn:constrained_start": ({"starter": "I think"}, "Hm.\n  I think so", "So I think"),
    "new:copy_span_idx": ({**_PROMPT, "n_start": 0, "n_end": 6}, "SAY IT", "say it."),
    "paragraphs:paragraphs": (None, "a\n***\nb", "a\n\nb"),
    "paragraphs:paragraphs2": (None, "a\n\nb\n\n", "a\n\nb\n\nc"),
    "punctuation:punctuation_dot": (None, "we go!", "we go..."),
    "punctuation:punctuation_exclamation": (None, "we go.", "we go!"),
}
