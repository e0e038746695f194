"""Writes the small sets of this folder: invented questions in the layouts of the domains.

python write.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
EVENTS = ["a ferry sinks", "a bridge opens", "a strike ends", "a river freezes", "a record falls",
          "a museum moves", "a comet is seen", "a bank merges"]  # fmt: skip
VIEWS = ["Tea is better than coffee", "Trains should be free", "Maps should show south at the top",
         "Every town needs a bell", "Letters beat calls", "Chess should be taught"]  # fmt: skip
PAPERS = ["Tea leaves as priors", "Bells and attention", "Sorting maps", "Ferries under drift"]
MINDS = ["Could two minds share one experience?", "Is a map ever false?",
         "Can a rule apply itself?", "When is a doubt finished?"]  # fmt: skip


def forecasts():
    for n, event in enumerate(EVENTS):
        yield {
            "id": f"f{n}",
            "source": "manifold" if n % 2 else "metaculus",
            "question": f"Will it be reported that {event} before November?",
            "background": "Reports come from the harbour office.",
            "resolution_criteria": "By the office's list.",
            "freeze_datetime": "2025-10-16T00:00:00+00:00",
            "freeze_datetime_value": str(round(0.1 + 0.1 * n, 1)),
            "resolution_date": "2025-11-01",
            "resolved_to": float(n % 3 == 0),
        }


def research():
    for n, event in enumerate(EVENTS[:6]):
        yield {
            "id": f"r{n}",
            "question": f"Why is it so rare that {event}?",
            "easy_answer": "Because nobody writes it down.",
            "hard_answer": f"Because {n + 2} conditions must hold at once.",
        }


def views():
    for n, view in enumerate(VIEWS):
        yield {
            "id": f"v{n}",
            "title": f"CMV: {view}",
            "selftext": "I have held this view for years, and nobody has moved me.",
            "argument": "It costs more than it gives, and others have tried it.",
            "delta": n % 2 == 0,
        }


def papers():
    for n, title in enumerate(PAPERS):
        yield {
            "id": f"p{n}",
            "title": title,
            "abstract": "We measure what was only said before, on three invented data sets.",
            "authors": ["Ada", "Bo"],
            "reviews": [{"rating": 4 + n, "summary": "Sound, though small."}],
            "references": ["On ferries, 1900"],
            "decision": "Accept (poster)" if n % 2 else "Reject",
        }


def minds():
    yield from ({"id": f"c{n}", "question": text} for n, text in enumerate(MINDS))


def demonstrations():
    topics = ["logic", "history", "statistics", "ethics"]
    for n, topic in enumerate(topics):
        yield {"id": f"i{n}", "topic": topic, "prompt": f"Show how you think about {topic}."}


def chats():
    for n, event in enumerate(EVENTS[:4]):
        yield {
            "conversation_hash": f"w{n}",
            "language": "English",
            "conversation": [
                {"role": "user", "content": f"What should I know before {event}?"},
                {"role": "assistant", "content": "It depends."},
            ],
        }


SETS = {
    "forecasts.json": forecasts,
    "research.json": research,
    "change_my_view.json": views,
    "openreview.json": papers,
    "conceptual.json": minds,
    "intellectual.json": demonstrations,
    "wildchat.json": chats,
}

if __name__ == "__main__":
    for name, records in SETS.items():
        text = json.dumps(list(records()), indent=1, ensure_ascii=False)
        (HERE / name).write_text(text + "\n", encoding="utf-8")
