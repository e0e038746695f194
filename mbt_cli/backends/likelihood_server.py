"""The process of the backend `transformers_likelihood`: log-probabilities over HTTP.

    python -P likelihood_server.py '{"model": ..., "port": ..., ...}'

It answers what vLLM answers to the same requests: `/tokenize`, `/v1/completions` with a prompt of
tokens and `prompt_logprobs`, and `/v1/chat/completions` with one token and its `top_logprobs`. It
needs torch and transformers, nothing of mbt, and reads its API key from MBT_SERVER_KEY. A model
without a chat template gets the contents of the turns with empty lines between them.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Scores = tuple[list[float], Any]
"""Log-probability of each token but the first, and a tensor of those of what may follow."""


class Model:
    """Scores tokens in batches, in a thread of its own.

    Args:
        settings: model, revision, trust_remote_code, dtype, device, batch_tokens, threads.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        where = {
            "revision": settings["revision"],
            "trust_remote_code": settings["trust_remote_code"],
        }
        self.tokenizer = AutoTokenizer.from_pretrained(settings["model"], **where)
        model = AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=getattr(torch, settings["dtype"]), **where
        )
        self._model = model.eval().to(settings["device"])
        self._device = settings["device"]
        self.context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._most = settings["batch_tokens"]
        self._waiting: queue.Queue[tuple[list[int], Future[Scores]]] = queue.Queue()
        self.tokens_scored = 0
        threading.Thread(target=self._work, daemon=True).start()

    def prompt(self, messages: list[Mapping[str, str]], arguments: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation, up to where a reply begins."""
        if self.tokenizer.chat_template is None:
            text = "".join(f"{turn['content']}\n\n" for turn in messages)
            return list(self.tokenizer(text)["input_ids"])
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **arguments
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def scores(self, tokens: list[int]) -> Scores:
        """Log-probability of each token but the first, and those of what may follow the last."""
        done: Future[Scores] = Future()
        self._waiting.put((tokens, done))
        return done.result()

    def _work(self) -> None:
        held: tuple[list[int], Future[Scores]] | None = None
        while True:
            batch = [held or self._waiting.get()]
            held = None
            longest = len(batch[0][0])
            while not self._waiting.empty():
                held = self._waiting.get()
                longest = max(longest, len(held[0]))
                if longest * (len(batch) + 1) > self._most:
                    break
                batch.append(held)
                held = None
            try:
                for (_, done), found in zip(
                    batch, self._scored([one for one, _ in batch]), strict=True
                ):
                    done.set_result(found)
            except Exception as error:  # noqa: BLE001  the request fails, not the server
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)

    def _scored(self, batch: list[list[int]]) -> list[Scores]:
        torch, longest = self._torch, max(map(len, batch))
        padded = torch.zeros((len(batch), longest), dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, tokens in enumerate(batch):
            padded[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        padded, mask = padded.to(self._device), mask.to(self._device)
        with torch.inference_mode():
            logits = self._model(input_ids=padded, attention_mask=mask, use_cache=False).logits
            found = []
            for row, tokens in enumerate(batch):
                own = logits[row, : len(tokens)].float().log_softmax(-1)
                given = own[:-1].gather(1, padded[row, 1 : len(tokens), None])[:, 0]
                found.append((given.tolist(), own[-1]))
        self.tokens_scored += sum(map(len, batch))
        return found


class BadRequestError(Exception):
    """What is wrong with a request."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    model: Model
    name = key = ""

    def log_message(self, *words: object) -> None:
        """No line per request."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {})
        elif self.path == "/version":
            import transformers

            self._answer(200, {"version": transformers.__version__, "context": self.model.context})
        elif self.path == "/metrics":
            self._answer(200, f"mbt:tokens_scored_total {self.model.tokens_scored}\n")
        else:
            self._answer(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {self.key}":
            self._answer(401, {"error": {"message": "wrong key"}})
            return
        answers = {
            "/tokenize": self._tokenize,
            "/v1/completions": self._completion,
            "/v1/chat/completions": self._chat,
        }
        try:
            if self.path not in answers:
                raise BadRequestError(f"no {self.path}")
            self._answer(200, answers[self.path](json.loads(content)))
        except BadRequestError as error:
            self._answer(400, {"error": {"message": str(error)}})
        except Exception as error:  # noqa: BLE001  a server's own error, which is sent again
            self._answer(500, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def _tokenize(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if "prompt" in body:
            special = body.get("add_special_tokens", True)
            tokens = self.model.tokenizer(body["prompt"], add_special_tokens=special)["input_ids"]
        else:
            tokens = self._prompt(body)
        return {"count": len(tokens), "tokens": tokens, "max_model_len": self.model.context}

    def _completion(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        tokens = self._fitting(body["prompt"])
        given, _ = self.model.scores(tokens)
        words = map(self._word, tokens[1:])
        logprobs = [
            {str(token): {"logprob": value, "decoded_token": word}}
            for token, value, word in zip(tokens[1:], given, words, strict=True)
        ]
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "length"}
        choice["prompt_logprobs"] = [None, *logprobs]
        return self._whole([choice], len(tokens), 0)

    def _chat(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        tokens = self._fitting(self._prompt(body))
        _, following = self.model.scores(tokens)
        count = max(1, min(int(body.get("top_logprobs") or 1), len(following)))
        values, places = following.topk(count)
        top = [
            {"token": self._word(token), "logprob": value}
            for token, value in zip(places.tolist(), values.tolist(), strict=True)
        ]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice["message"] = {"role": "assistant", "content": top[0]["token"]}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        return self._whole([choice], len(tokens), 1)

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        return self.model.prompt(body["messages"], body.get("chat_template_kwargs") or {})

    def _fitting(self, tokens: list[int]) -> list[int]:
        if not tokens:
            raise BadRequestError("the prompt has no tokens")
        if self.model.context and len(tokens) > self.model.context:
            raise BadRequestError(
                f"the maximum context length is {self.model.context} tokens, not {len(tokens)}"
            )
        return tokens

    def _word(self, token: int) -> str:
        return str(self.model.tokenizer.decode([token]))

    def _whole(self, choices: list[dict[str, Any]], asked: int, made: int) -> Mapping[str, Any]:
        usage = {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
        return {"object": "completion", "model": self.name, "choices": choices, "usage": usage}

    def _answer(self, status: int, body: str | Mapping[str, Any]) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    request_queue_size = 256
    daemon_threads = True


def main() -> None:
    """Serve one model on a loopback port until it is killed."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    settings = json.loads(sys.argv[1])
    Handler.name, Handler.key = settings["name"], os.environ["MBT_SERVER_KEY"]
    Handler.model = Model(settings)
    Server(("127.0.0.1", settings["port"]), Handler).serve_forever()


if __name__ == "__main__":
    main()
