"Runs as jobs of a scheduler: the numbers of `fit`, whatever ends a job, and what a window says meanwhile"
import json, os, re, shutil, subprocess, time
from pathlib import Path

import psutil, pytest

from trainer_nb.all import Ray, Run, Slurm, attach
from trainer_nb.runs import engine
from fake_slurm import install
from common import Slow, same, until, weights
from test_runs_in_ranks import N, make
from test_distributed import check_same

here = Path(__file__).parents[1]
ODD = "a b'c%j\"$(touch oops)"

def fitted(n_procs=1):
    learn = make()
    if n_procs == 1: learn.fit(N)
    else: learn.launch(n_procs, N)
    return learn

def job_of(run): return run.folder.read('job.json')['job']

@pytest.fixture
def fake(tmp_path, monkeypatch):
    "Commands on PATH that behave as those of Slurm; a file `busy` there keeps jobs in the queue"
    install(home := tmp_path/'fake')
    monkeypatch.setenv('PATH', f'{home}:{os.environ["PATH"]}')
    monkeypatch.setenv('FAKE_SLURM', str(home))
    monkeypatch.setenv('SLURM_JOB_ID', '7')         # this process may be a job itself
    monkeypatch.setattr(engine, '_PAUSE_S', .5)
    monkeypatch.chdir(tmp_path)
    engine._asked.clear()
    yield home
    shutil.rmtree(home)         # ends those that wait


# ---- with commands that stand in for Slurm ---------------------------------------------------------------------------

def test_signal_and_requeue(fake, tmp_path):
    "Queued, begun, signalled before its time is over, queued again and begun again: the end is that of `fit`"
    (fake/'busy').touch()
    learn, folder = make(Slow()), tmp_path/ODD
    run = learn.start(N, folder=folder, on=Slurm('0:10:00', partition='main', comment="it's \"a\" #test"))
    assert str(run.state).startswith('waiting: Slurm job 1 is PENDING') and not run.is_over
    assert repr(attach(folder)).endswith('before training began)') and run.output == ''
    run.pause()                 # taken when it begins
    (fake/'busy').unlink()
    until(lambda: run.status == 'paused')
    run.unpause().wait()
    until(lambda: run.history.n_steps > 8)
    (fake/'busy').touch()
    subprocess.run(['scancel', '--batch', '--signal=USR1', '1'], check=True)
    until(lambda: 'PENDING' in str(run.state))
    assert run.status == 'waiting'
    n = run.history.n_steps
    (fake/'busy').unlink()
    run.wait(300)
    check_same(learn, fitted())
    assert run.status == 'done' and 8 < n < 6*N and 'resumes from' in run.output
    assert not (tmp_path/'oops').exists() and not (folder/'oops').exists()

def test_jobs_in_the_queue(fake, tmp_path, monkeypatch):
    """A job that has not begun is taken out of the queue, but not another one that a file names; `restart` submits it
    again. One that ended without a word is lost; one that nobody can be asked about is not"""
    (fake/'busy').touch()
    monkeypatch.setattr(engine, '_PAUSE_S', 0)
    before = weights((learn := make()).model)
    run = learn.start(N, folder=tmp_path/'a', on=Slurm(mem='1G', time=5))
    shutil.copytree(run.path, tmp_path/'b')     # as if somebody had sent it
    request = (other := Run(tmp_path/'b')).stop()
    assert other.status == run.status == 'waiting' and request.answer is None
    assert json.loads((fake/'1.json').read_text())['state'] == 'PENDING'
    assert run.stop().wait(1) == 'taken out of the queue' and run.status == 'stopped'
    run.wait(1)
    assert same(weights(learn.model), before)
    first = (run.path/'job.sh').read_text()
    run.restart()
    assert run.status == 'waiting' and job_of(run) == '2' and (run.path/'job.sh').read_text() == first
    assert '--mem=1G' in first and '--time=5' in first
    with monkeypatch.context() as patch:
        patch.setenv('PATH', '/nowhere')
        assert 'there is no squeue here' in str(Run(run.path).state) and Run(run.path).status == 'waiting'
    run.folder.write('status.json', {'state': 'running', 'host': 'elsewhere', 'pid': 1, 'heartbeat': time.time() - 99,
                                     'position': 'in epoch 3'})
    for state, expected in [('PENDING', 'waiting: .*in epoch 3'), ('RUNNING', 'unreachable'),
                            ('NODE_FAIL', 'died: .*job 2 is NODE_FAIL'), (None, 'died: .*is over.*epoch 3')]:
        if state: (fake/'2.json').write_text(json.dumps({'state': state}))
        else: (fake/'2.json').unlink()
        assert re.match(expected, str(Run(run.path).state)), state
    with pytest.raises(RuntimeError, match='restart.. continues'): Run(run.path).wait(1)

def test_worker_that_cannot_begin(fake, tmp_path):
    "A job whose Python does not start fails once, and is not put into the queue again"
    run = make().start(1, folder=tmp_path/'a', on=Slurm(setup='exit 3'))
    until(lambda: run.is_over)
    assert str(run.state).startswith('died: Slurm job 1 is FAILED')

@pytest.mark.soak
@pytest.mark.parametrize('on', [Slurm(procs_per_node=2), Ray(2, CPU=.5)], ids=['slurm', 'ray'])
def test_all_ranks_start_again(on, request, tmp_path):
    "After the loss of one"
    request.getfixturevalue('ray' if isinstance(on, Ray) else 'fake')
    run = (learn := make(Slow())).start(N, folder=tmp_path/ODD, on=on)
    until(lambda: run.history.n_steps > 8, 900)
    run.checkpoint().wait()
    others = [o for o in psutil.process_iter(['environ', 'cmdline']) if (o.info['environ'] or {}).get('RANK') == '1']
    [other] = [o for o in others if str(run.path) in o.info['cmdline'] and 'run' in o.info['cmdline']]
    other.kill()
    until(lambda: run.is_over, 300)
    run.restart().wait(600)
    check_same(learn, fitted(2))
    assert 'resumes from' in run.output and not [*tmp_path.rglob('oops')]

def test_wrong_input(fake, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='nodes'): Slurm(nodes=0)
    def start(**kwargs): return make().start(1, folder=tmp_path/'a', **kwargs)
    with pytest.raises(ValueError, match='n_procs is 2'): start(on=Slurm(), n_procs=2)
    with pytest.raises(RuntimeError, match='partition specified: nowhere'): start(on=Slurm(partition='nowhere'))
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(RuntimeError, match='no sbatch on PATH'): start(on=Slurm())
    monkeypatch.setattr('trainer_nb.runs.engine.find_spec', lambda name: None)
    with pytest.raises(RuntimeError, match=r"trainer_nb\[ray\]"): start(on=Ray(2))
    assert [o.name for o in tmp_path.iterdir()] == ['fake']

@pytest.fixture
def ray(tmp_path, monkeypatch):
    pytest.importorskip('ray', reason="Ray is not installed: pip install 'trainer_nb[ray]'")
    monkeypatch.setenv('RAY_raylet_start_wait_time_s', '300')       # of a busy machine
    yield
    for o in tmp_path.rglob('job.json'): Ray().cancel(json.loads(o.read_text())['job'], o.parent)

# ---- with Slurm itself -----------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    "A Slurm of one node on this machine"
    if missing := [o for o in ('sbatch', 'slurmctld', 'slurmd', 'munged') if not shutil.which(o)]:
        pytest.skip(f'there is no {", ".join(missing)} here: apt-get install slurmctld slurmd slurm-client munge')
    folder = tmp_path_factory.mktemp('slurm')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('SLURM_CONF', str(folder/'slurm.conf'))
        subprocess.run([here/'slurm_here.sh', 'start', folder], check=True, stdout=subprocess.DEVNULL)
        yield folder
        subprocess.run(['scancel', '--user', os.environ.get('USER', 'root')])
        subprocess.run([here/'slurm_here.sh', 'stop', folder], check=True)

@pytest.fixture
def slurm(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, '_PAUSE_S', .2)
    monkeypatch.chdir(tmp_path)

def again(run):
    "Do not wait the two minutes after which Slurm begins a job anew; but until the node has forgotten it"
    until(lambda: 'BeginTime' in str(run.state), 300)
    time.sleep(8)
    subprocess.run(['scontrol', 'update', f'JobId={job_of(run)}', 'StartTime=now'], check=True)

@pytest.mark.soak
@pytest.mark.parametrize('partition, n', [('low', 1), ('kind', 2)])
def test_slurm_preempts(partition, n, slurm, tmp_path):
    "Another job takes the node, at once or after a time of grace"
    learn = make(Slow())
    on = Slurm('0:05:00', procs_per_node=n, cpus_per_task=2, partition=partition, comment="it's \"a\" #test")
    run = learn.start(N, folder=tmp_path/ODD, on=on)
    until(lambda: run.history.n_steps > 6, 60)
    subprocess.run(['sbatch', '--partition=high', '--ntasks=2', '--wrap=true', '--output=/dev/null'], check=True)
    again(run)
    run.wait(600)
    check_same(learn, fitted(n))
    assert 'resumes from' in run.output and not [*tmp_path.rglob('oops')]
