"""A chat endpoint that gives log-probabilities as vLLM does, from a language model of one rule.

Its tokens are words. A word that stands earlier in the text has the probability 1/2, any other
1/8. The chat template writes each turn as its role and its content. As the first token of a reply
it expects the letters A and B with 0.6 and 0.2.
"""

import math
import re

from aiohttp import web

from tests.cli.chat_server import ChatServer

SEEN, NEW = math.log(1 / 2), math.log(1 / 8)


class LogprobServer(ChatServer):
    """As `ChatServer`; `scored` has each text of a request for log-probabilities.

    With `is_mute` it ignores what is asked about log-probabilities, as many endpoints do.
    """

    def __init__(self, reply="<answer>Oslo</answer>", **settings):
        super().__init__(reply, **settings)
        self.words: list[str] = []
        self.scored: list[str] = []
        self.is_mute = False

    def add_routes(self, app):
        if not self.is_mute:
            app.router.add_post("/tokenize", self._tokenize)

    def _ids(self, text):
        found = re.findall(r"\s*\S+", text)
        self.words += [word for word in dict.fromkeys(found) if word not in self.words]
        return [self.words.index(word) for word in found]

    async def _tokenize(self, request):
        body = await request.json()
        text = body.get("prompt")
        if text is None:
            assert body["add_generation_prompt"]
            turns = [f"[{turn['role']}] {turn['content']}" for turn in body["messages"]]
            text = "\n".join([*turns, "[assistant]"])
        tokens = self._ids(text)
        return web.json_response({"count": len(tokens), "tokens": tokens, "max_model_len": 999})

    async def _text(self, request):
        body = await request.json()
        if self.answers <= 0:
            return web.json_response({"error": {"message": "boom"}}, status=500)
        self.answers -= 1
        prompt = body["prompt"]
        self.scored.append("".join(self.words[token] for token in prompt))
        seen: set[str] = set()
        logprobs = []
        for token in prompt:
            word = self.words[token]
            value = SEEN if word.strip() in seen else NEW
            logprobs.append({token: {"logprob": value, "rank": 1, "decoded_token": word}})
            seen.add(word.strip())
        logprobs[0] = None
        return self._completion(
            body, "text_completion", {"text": "x", "prompt_logprobs": logprobs}, len(prompt), 1
        )

    def _completion(self, body, kind, choice, prompt_tokens=10, completion_tokens=5):
        if body.get("logprobs") and not self.is_mute:
            shares = {"A": 0.6, "The": 0.15, " B": 0.2}
            top = [{"token": word, "logprob": math.log(p)} for word, p in shares.items()]
            choice = {**choice, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        choices = [{"index": 0, "finish_reason": "length", **choice}]
        return web.json_response({"object": kind, "choices": choices, "usage": usage})
