"""A stand-in for OpenAI's batch API in its own process; what it holds outlives its clients.

It validates every uploaded line and every call by the types of the SDK, as the API does, and keeps
the API's rules: a `custom_id` once a file, one endpoint, one model. A request is answered by its
content alone. Every third request of the first batch expires if it is started with `--expire`.
"""

import argparse
import asyncio
import hashlib
import json
import sys

from aiohttp import web
from openai.types import Batch, FileObject
from openai.types.batch_create_params import BatchCreateParams
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Chat
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as Completion
from pydantic import TypeAdapter

_BODIES = {"/v1/chat/completions": Chat, "/v1/completions": Completion}
_CREATE = TypeAdapter(BatchCreateParams)
_LINE = {"custom_id", "method", "url", "body"}


class Api:
    def __init__(self, options):
        self.options = options
        self.files, self.contents, self.batches = {}, {}, {}
        self.polls, self.problems, self.answered = {}, [], []
        self.downloads = 0

    def refuse(self, message):
        self.problems.append(message)
        return web.json_response({"error": {"message": message}}, status=400)

    def add_file(self, name, content, purpose):
        one = f"file-{len(self.files)}"
        self.contents[one] = content
        self.files[one] = FileObject(
            id=one, bytes=len(content), created_at=0, filename=name, object="file",
            purpose=purpose, status="processed",
        ).model_dump(mode="json")  # fmt: skip
        return self.files[one]

    async def upload(self, request):
        form = await request.post()
        content = form["file"].file.read()
        lines = [json.loads(line) for line in content.splitlines()]
        if form["purpose"] != "batch" or len(lines) > 50_000 or len(content) > 200_000_000:
            return self.refuse("not a batch, or too large")
        for line in lines:
            if set(line) != _LINE or line["method"] != "POST" or line["url"] not in _BODIES:
                return self.refuse(f"fields {sorted(line)} of {line.get('url')}")
            kind = _BODIES[line["url"]]
            if unknown := set(line["body"]) - kind.__required_keys__ - kind.__optional_keys__:
                return self.refuse(f"unknown fields {sorted(unknown)}")
            try:
                TypeAdapter(kind).validate_python(line["body"])
            except ValueError as error:
                return self.refuse(str(error))
        if len({line["custom_id"] for line in lines}) < len(lines):
            return self.refuse("custom_id twice")
        if len({(line["url"], line["body"]["model"]) for line in lines}) != 1:
            return self.refuse("several endpoints or models")
        made = self.add_file(form["file"].filename, content, "batch")
        await asyncio.sleep(self.options.slow)
        return web.json_response(made)

    async def create(self, request):
        body = await request.json()
        try:
            _CREATE.validate_python(body)
        except ValueError as error:
            return self.refuse(str(error))
        one = f"batch-{len(self.batches)}"
        lines = [json.loads(line) for line in self.contents[body["input_file_id"]].splitlines()]
        if body["endpoint"] != lines[0]["url"]:
            return self.refuse("another endpoint")
        self.batches[one] = Batch(
            id=one, object="batch", created_at=0, status="validating",
            request_counts={"total": len(lines), "completed": 0, "failed": 0}, **body,
        ).model_dump(mode="json")  # fmt: skip
        await asyncio.sleep(self.options.slow)
        return web.json_response(self.batches[one])

    async def poll(self, request):
        batch = self.batches[request.match_info["id"]]
        self.polls[batch["id"]] = polls = self.polls.get(batch["id"], 0) + 1
        if polls == 2:
            batch["status"] = "in_progress"
        if polls == 3:
            self.finish(batch)
        return web.json_response(batch)

    def finish(self, batch):
        good, bad = [], []
        lines = self.contents[batch["input_file_id"]].splitlines()
        for number, line in enumerate(map(json.loads, lines)):
            own = {"id": f"r{number}", "custom_id": line["custom_id"], "response": None}
            if self.options.expire and batch["id"] == "batch-0" and number % 3 == 0:
                error = {"code": "batch_expired", "message": "not done in time"}
                bad.append({**own, "error": error})
                continue
            text = hashlib.sha256(json.dumps(line["body"]["messages"]).encode()).hexdigest()
            choice = {"message": {"content": text}, "finish_reason": "stop", "index": 0}
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            response = {"status_code": 200, "body": {"choices": [choice], "usage": usage}}
            good.append({**own, "response": response, "error": None})
            self.answered.append(line["custom_id"])
        good.reverse()  # the order is not that of the requests
        for name, found in (("output_file_id", good), ("error_file_id", bad)):
            if found:
                content = "".join(json.dumps(one) + "\n" for one in found).encode()
                batch[name] = self.add_file(name, content, "batch_output")["id"]
        batch["status"] = "expired" if bad else "completed"
        batch["request_counts"] |= {"completed": len(good), "failed": len(bad)}

    async def content(self, request):
        self.downloads += 1
        response = web.StreamResponse()
        await response.prepare(request)
        content = self.contents[request.match_info["id"]]
        await response.write(content[: len(content) // 2])
        await asyncio.sleep(self.options.slow)
        await response.write(content[len(content) // 2 :])
        await response.write_eof()
        return response

    async def listed(self, request):
        found = self.batches if request.path.endswith("batches") else self.files
        return web.json_response({"object": "list", "data": list(found.values())})

    async def stats(self, request):
        sent = [f["id"] for f in self.files.values() if f["purpose"] == "batch"]
        return web.json_response(
            {
                "uploads": len(sent),
                "batches": len(self.batches),
                "polls": sum(self.polls.values()),
                "downloads": self.downloads,
                "problems": self.problems,
                "answered": len(self.answered),
                "distinct": len(set(self.answered)),
            }
        )


async def serve():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expire", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    api = Api(parser.parse_args())
    app = web.Application(client_max_size=300_000_000)
    app.router.add_post("/v1/files", api.upload)
    app.router.add_get("/v1/files", api.listed)
    app.router.add_get("/v1/files/{id}/content", api.content)
    app.router.add_post("/v1/batches", api.create)
    app.router.add_get("/v1/batches", api.listed)
    app.router.add_get("/v1/batches/{id}", api.poll)
    app.router.add_get("/stats", api.stats)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
