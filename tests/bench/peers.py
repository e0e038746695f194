"""Other tools asked for the same 4,000 replies; each runs in an environment of its own.

    ENV/bin/python peers.py inspect_ai http://127.0.0.1:18137/v1 4000 512 FOLDER

Prints one JSON line: requests a second from the first request to everything on disk (imports do
not count), processor milliseconds a request and peak memory in MiB. Prompts are mbt's own.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROMPT = "Document text " * 500


def prompts(total: int) -> list[str]:
    return [f"{number} {PROMPT}" for number in range(total)]


def inspect_ai(base_url: str, total: int, in_flight: int, folder: Path) -> Callable[[], None]:
    os.environ["STUB_API_KEY"] = "none"
    os.environ["INSPECT_DISPLAY"] = "none"
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.solver import generate

    task = Task(MemoryDataset([Sample(input=text) for text in prompts(total)]), solver=generate())

    def run() -> None:
        (log,) = evaluate(
            task,
            model="openai-api/stub/m",
            model_base_url=base_url,
            max_connections=in_flight,
            max_samples=in_flight,
            log_dir=str(folder),
        )
        assert log.status == "success", log.error

    return run


def distilabel(base_url: str, total: int, in_flight: int, folder: Path) -> Callable[[], None]:
    from distilabel.models import OpenAILLM
    from distilabel.pipeline import Pipeline
    from distilabel.steps import LoadDataFromDicts
    from distilabel.steps.tasks import TextGeneration

    with Pipeline("bench", cache_dir=folder) as pipeline:
        load = LoadDataFromDicts(
            data=[{"instruction": text} for text in prompts(total)], batch_size=in_flight
        )
        model = OpenAILLM(model="m", base_url=base_url, api_key="none")
        load >> TextGeneration(llm=model, input_batch_size=in_flight)

    def run() -> None:
        found = pipeline.run(use_cache=False)
        assert len(found["default"]["train"]) == total

    return run


def datatrove(base_url: str, total: int, in_flight: int, folder: Path) -> Callable[[], None]:
    from datatrove.data import Document
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.writers import JsonlWriter

    async def rollout(document, generate):
        return await generate({"messages": [{"role": "user", "content": document.text}]})

    runner = InferenceRunner(
        rollout_fn=rollout,
        config=InferenceConfig(
            server_type="endpoint",
            endpoint_url=base_url.removesuffix("/v1"),
            model_name_or_path="m",
            max_concurrent_generations=in_flight,
        ),
        output_writer=JsonlWriter(
            str(folder / "out"), output_filename="${rank}_${chunk_index}.jsonl", compression=None
        ),
        checkpoints_local_dir=str(folder / "checkpoints"),
        records_per_chunk=500,
    )
    documents = [Document(text=text, id=str(n)) for n, text in enumerate(prompts(total))]
    executor = LocalPipelineExecutor(
        pipeline=[documents, runner], tasks=1, logging_dir=str(folder / "logs")
    )
    return lambda: executor.run() and None


def oumi(base_url: str, total: int, in_flight: int, folder: Path) -> Callable[[], None]:
    from oumi.core.configs import GenerationParams, InferenceConfig, ModelParams, RemoteParams
    from oumi.core.types.conversation import Conversation, Message, Role
    from oumi.inference import OpenAIInferenceEngine

    engine = OpenAIInferenceEngine(
        model_params=ModelParams(model_name="m"),
        remote_params=RemoteParams(
            api_url=f"{base_url}/chat/completions",
            api_key="none",
            num_workers=in_flight,
            politeness_policy=0,
        ),
    )
    asked = [
        Conversation(messages=[Message(role=Role.USER, content=text)]) for text in prompts(total)
    ]
    config = InferenceConfig(
        generation=GenerationParams(max_new_tokens=2048), output_path=str(folder / "out.jsonl")
    )
    folder.mkdir(parents=True, exist_ok=True)

    def run() -> None:
        assert len(engine.infer(asked, config)) == total

    return run


def openai_async(base_url: str, total: int, in_flight: int, _: Path) -> Callable[[], None]:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    async def ask_all() -> None:
        gate = asyncio.Semaphore(in_flight)
        async with AsyncOpenAI(
            base_url=base_url, api_key="none", http_client=DefaultAioHttpClient()
        ) as client:

            async def one(text: str) -> None:
                async with gate:
                    message = {"role": "user", "content": text}
                    await client.chat.completions.create(model="m", messages=[message])

            await asyncio.gather(*map(one, prompts(total)))

    return lambda: asyncio.run(ask_all())


def openai_threads(base_url: str, total: int, in_flight: int, _: Path) -> Callable[[], None]:
    import openai

    def ask_all() -> None:
        with openai.OpenAI(base_url=base_url, api_key="none", timeout=600) as client:

            def one(text: str) -> None:
                message = {"role": "user", "content": text}
                client.chat.completions.create(model="m", messages=[message])

            with ThreadPoolExecutor(in_flight) as threads:
                list(threads.map(one, prompts(total)))

    return ask_all


PEERS = {
    f.__name__: f for f in (inspect_ai, distilabel, datatrove, oumi, openai_async, openai_threads)
}


def main(name: str, base_url: str, total: int, in_flight: int, folder: Path) -> None:
    run = PEERS[name](base_url, total, in_flight, folder)
    started = time.monotonic()
    run()
    seconds = time.monotonic() - started
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "requests_per_second": total / seconds,
        "cpu_ms": sum(u.ru_utime + u.ru_stime for u in used) / total * 1000,
        "memory_mib": sum(u.ru_maxrss for u in used) / 1024,
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
