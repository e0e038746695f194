"""vLLM within a process that trains, as TRL starts it, draws from that process's random state.

`mbt_cli.training.grpo` seeds it, and checkpoints hold it, so that resumed trainings go on.
"""

import json
import os
import socket
import subprocess
import sys

SCRIPT = """
import json, random, sys
import numpy as np
import torch
from vllm import LLM, SamplingParams

model = LLM(
    model=sys.argv[1], seed=0, distributed_executor_backend="external_launcher", max_num_seqs=4,
    max_model_len=256, enforce_eager=True, dtype="float32", logprobs_mode="processed_logprobs",
)

def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)

def replies(**more):
    params = SamplingParams(n=1, temperature=1.0, max_tokens=12, logprobs=0, **more)
    asked = [{"prompt_token_ids": [5, 6, 7, 8]}] * 4
    return [list(o.outputs[0].token_ids) for o in model.generate(asked, params, use_tqdm=False)]

own = torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state())
seed(5)
first = replies()
state = random.getstate(), np.random.get_state(), torch.get_rng_state()
second = replies()
random.setstate(state[0])
np.random.set_state(state[1])
torch.set_rng_state(state[2])
resumed = replies()
seed(5)
again = replies()
seed(6)
other = replies()
told = {"own": own, "first": first, "second": second, "resumed": resumed, "again": again}
told |= {"other": other, "seeded": replies(seed=3)}
print("told", json.dumps(told))
"""


def test_the_random_state_of_the_process_decides_the_replies(hub_layout):
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        one["MASTER_PORT"] = str(free.getsockname()[1])
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(hub_layout)],
        env={**os.environ, **one, "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    lines = [line for line in ran.stdout.splitlines() if line.startswith("told ")]
    assert lines, ran.stdout + ran.stderr
    told = json.loads(lines[0].removeprefix("told "))
    assert told["own"]  # vLLM sets the state of the process to its own seed
    assert told["first"] != told["second"] == told["resumed"]
    assert told["again"] == told["first"] != told["other"]
    assert len({tuple(reply) for reply in told["first"]}) > 1
    assert len({tuple(reply) for reply in told["seeded"]}) == 1  # a group of equal replies
