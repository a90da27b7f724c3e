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
    assert not out.returncode and int(last.split()[0]) >= 33, out.stdout[-3000:]

@pytest.mark.soak
def test_a_test_that_ends_the_process_is_noted_and_the_others_run(tmp_path, monkeypatch):
    "A device that fails takes the process along"
    monkeypatch.syspath_prepend(str(ROOT/'tools'))
    import gpu
    (tmp_path/'test_x.py').write_text("import os, pytest, time\npytestmark = pytest.mark.gpu\n"
                                      "def test_a(): pass\ndef test_b(): os._exit(7)\n"
                                      "def test_c(): time.sleep(60)\ndef test_d(): assert 0\n"
                                      "def test_e(): pytest.skip('why')\n")
    (tmp_path/'pytest.ini').write_text('[pytest]\nmarkers = gpu\n')
    monkeypatch.setattr(gpu, 'ROOT', tmp_path)
    monkeypatch.setattr(gpu, 'HANGS_S', 8)
    found = gpu.run_tests([f'test_x.py::test_{o}' for o in 'abcde'], gpu.environment(tmp_path),
                          gpu.time.monotonic() + 100)
    assert [o['outcome'] for o in found.values()] == ['passed', 'failed', 'failed', 'failed', 'skipped']
    assert [o['why'][:20] for o in found.values()] == ['', 'ended the process wi', 'took more than 8 s', 'assert 0',
                                                       'Skipped: why']
    assert gpu.table(found).count('\n') == 6
