"""Kernels that are forked from one process, which imports once what takes seconds: torch, its compiler, matplotlib

The command of a kernel is this file as a program, `_fork.py SOCKET -f CONNECTION_FILE ...`. It asks the process that
`serve` runs in for a kernel, hands over its streams and its environment, and lives as long as the kernel.
"""
import gc, json, os, signal, socket, sys, threading
from contextlib import suppress


def ask(path, *argv):
    "Wait for a kernel, pass signals on to it, and end as it ends"
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        wish = json.dumps({'argv': argv, 'cwd': os.getcwd(), 'env': dict(os.environ)}).encode()
        socket.send_fds(s, [len(wish).to_bytes(8, 'little')], [0, 1, 2])
        s.sendall(wish)
        f = s.makefile()
        pid = int(f.readline())
        for o in signal.SIGINT, signal.SIGTERM: signal.signal(o, lambda sig, frame: os.kill(pid, sig))
        sys.exit(int(f.readline() or 1))

def kernel(wish):
    "Be the kernel"
    from ipykernel.kernelapp import launch_new_instance
    os.environ.clear()
    os.environ.update(wish['env'])
    os.chdir(wish['cwd'])
    sys.argv[1:] = wish['argv']
    launch_new_instance(parent_handle=os.getppid())

def keep(conn):
    "Fork a kernel, and end it when nobody waits for it any more"
    head, fds, *_ = socket.recv_fds(conn, 8, 3)
    f = conn.makefile('rb')
    wish = json.loads(f.read(int.from_bytes(head, 'little')))
    if not (pid := os.fork()):
        for i, fd in enumerate(fds): os.dup2(fd, i)
        for fd in fds: os.close(fd)
        f.close(), conn.close()
        os.setsid()
        return kernel(wish)
    for fd in fds: os.close(fd)
    conn.sendall(b'%d\n' % pid)
    def end():
        f.read()
        with suppress(ProcessLookupError): os.kill(pid, signal.SIGKILL)
    threading.Thread(target=end, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try: conn.sendall(b'%d\n' % abs(code))
    except OSError: pass
    os._exit(0)

def serve(path):
    "Answer those who ask, each in a process of its own"
    del sys.path[0]     # this folder
    os.environ['MPLBACKEND'] = 'module://matplotlib_inline.backend_inline'     # as in every kernel
    import ipykernel.ipkernel, ipykernel.kernelapp, matplotlib.figure, sklearn.datasets, torch._dynamo     # noqa: F401
    gc.freeze()     # a collection in a kernel neither visits nor copies what it shares
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        s.listen()
        print('ready', flush=True)
        while True:
            conn, _ = s.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                s.close()
                return keep(conn)
            conn.close()


if __name__ == '__main__': serve(sys.argv[2]) if sys.argv[1] == 'serve' else ask(*sys.argv[1:])
