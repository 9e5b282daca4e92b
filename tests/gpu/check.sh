#!/usr/bin/env bash
# Measures fbgemm's operators on this machine's GPU beside its preset: tests/gpu/check.sh [FOLDER] [MINUTES], at most 10.
# The GPU has a preset (docs/hardware.md): an H100 or H200, for example. Python 3.11 or 3.12 is $PYTHON, by default python3.
# fbgemm-gpu is built for one torch: 1.X for 2.(X+5), so 1.6.0 for torch 2.11 with CUDA 13. On a machine without a network,
# install wheels that were downloaded elsewhere, each without what it requires, and show Python their folder:
#   python3 -m pip install --no-index --no-deps --target site *.whl && PYTHONPATH=$PWD/site tests/gpu/check.sh
# Every figure is in FOLDER/tbe_GPU.csv at once; copy it into tests/benchmarks/data, and run `python -m tests.benchmarks presets`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-.benchmarks/gpu} minutes=${2:-10} python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

"$python" - <<'END'
import importlib.util, sys

needed = "torch fbgemm_gpu numba scipy pandas pyarrow fsspec jaxtyping psutil yaml safetensors pydantic pydantic_core"
needed = f"{needed} annotated_types typing_inspection typing_extensions"  # pydantic's
if missing := [name for name in needed.split() if importlib.util.find_spec(name) is None]:
    sys.exit(f"Python modules are missing: {' '.join(missing)}; install their packages (tests/gpu/check.sh says how)")
import torch

if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} finds no NVIDIA GPU; check nvidia-smi, or install a build of torch for CUDA")
try:
    import fbgemm_gpu
except Exception as error:
    sys.exit(f"fbgemm_gpu does not load beside torch {torch.__version__}: {error}; 1.X is built for torch 2.(X+5)")
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, fbgemm_gpu {fbgemm_gpu.__version__}")
END
exec timeout --signal=INT --kill-after=10 $((60 * minutes)) "$python" -m tests.gpu.check --minutes "$minutes" --out "$folder"
