"""The OpenAI client in threads, as much published research code asks: nothing is kept on the way.

    python openai_threads.py http://127.0.0.1:18100/v1 4000 512

Prints one JSON line: requests a second, processor milliseconds a request, peak memory in MiB.
"""

import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai

PROMPT = "Document text " * 500


def main(base_url: str, total: int, in_flight: int) -> None:
    with openai.OpenAI(base_url=base_url, api_key="none", timeout=600) as client:

        def ask(number: int) -> str | None:
            message = {"role": "user", "content": f"{number} {PROMPT}"}
            reply = client.chat.completions.create(model="m", messages=[message], seed=number)
            return reply.choices[0].message.content

        started = time.monotonic()
        with ThreadPoolExecutor(in_flight) as threads:
            texts = list(threads.map(ask, range(total)))
        seconds = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "requests_per_second": len(texts) / seconds,
        "cpu_ms": (used.ru_utime + used.ru_stime) / total * 1000,
        "memory_mib": used.ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
