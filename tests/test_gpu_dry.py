"What `make gpu` runs is right: all of it on the CPU"
import os, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

@pytest.mark.soak
def test_the_tests_for_a_gpu_pass_on_the_cpu():
    env = {**os.environ, 'TRAINER_NB_GPU_DRY': '1', 'OMP_NUM_THREADS': '1'}
    out = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-m', 'gpu', 'tests/test_gpu.py'], cwd=ROOT, env=env,
                         capture_output=True, text=True)
    last = out.stdout.splitlines()[-1]
    print(last)
    assert not out.returncode and int(last.split()[0]) >= 30, out.stdout[-3000:]
