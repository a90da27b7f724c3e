"""Real JupyterLab and Notebook 7 in headless Chromium

`Jupyter` is a server and a browser, `Page` one notebook in one of the two apps. To wait is to poll the page, with a
time-out. The server listens on 127.0.0.1 with a random token; its files are temporary. The browser resolves no other
host: `foreign` lists the requests that it was refused.
"""
import json, os, secrets, shutil, socket, subprocess, sys, tempfile, time, urllib.request
from base64 import b64decode
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from fits import environment

CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium')
ARGS = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-sync', '--disable-background-networking',
        '--disable-component-update',
        '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1']
TIMEOUT_S = 60      # that any wait may take
URLS = {'lab': 'doc/tree', 'notebook': 'notebooks'}
PICTURE = 'k => nb.area(k || 0)?.querySelector("img")?.outerHTML'     # of an output
SETTINGS = {    # by JupyterLab's schemas
    'apputils-extension/notification': {'fetchNews': 'false', 'checkForUpdates': False, 'doNotDisturbMode': True},
    'docmanager-extension/plugin': {'autosave': False},
    'notebook-extension/tracker': {'windowingMode': 'none', 'scrollPastEnd': False}}     # every cell is in the DOM

def missing():  # str or None
    "Why there can be no browser here"
    lacks = [o for o in ('playwright', 'jupyterlab', 'notebook') if find_spec(o) is None]
    if lacks: return f'{", ".join(lacks)} not installed'
    return None if CHROMIUM else 'no Chromium: install it (Debian: apt-get install chromium), or set CHROMIUM'

def left_out(why):
    "Skip a test; fail where everything is to be installed"
    if os.environ.get('CI'): pytest.fail(f'no browser tests: {why}')
    pytest.skip(why)

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def serve(args, log, is_up, **kwargs):
    "Start a program, and return its process as soon as `is_up()` raises no `OSError`"
    with open(log, 'w') as f:
        server = subprocess.Popen([*map(str, args)], stdout=f, stderr=f, stdin=subprocess.DEVNULL,
                                  start_new_session=True, **kwargs)
    end = time.monotonic() + TIMEOUT_S
    while True:
        try: is_up()
        except OSError: pass
        else: return server
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            raise TimeoutError(log.read_text()[-2000:])
        time.sleep(.05)

@contextmanager
def chromium():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            page = browser.new_page()
            page.set_content('<p>text</p>')
            if not page.evaluate('document.body.firstChild.clientHeight'): left_out('no fonts')
            page.close()
            yield browser
        finally: browser.close()

def new_page(browser, url, foreign, **viewport):
    "A page; requests to other hosts go to the list `foreign`"
    page = browser.new_page(viewport={'width': 1000, 'height': 1000, **viewport})
    page.set_default_timeout(TIMEOUT_S*1000)
    page.on('request', lambda o: o.url.startswith((url, 'data:', 'blob:')) or foreign.append(o.url))
    return page

def until(page, js, arg=None, console=()):
    "Wait until something is true in the page"
    try: return page.wait_for_function(js, arg=arg, polling=30)
    except Exception as e:
        e.add_note(f'{js} {arg}, in\n{page.evaluate("document.body.innerText")[-3000:]}\n{console[-10:]}')
        raise

class Jupyter:
    "A server and a browser; a context manager that leaves nothing of either"
    def __init__(self,
        settings=None,  # more for JupyterLab
        browser=None,   # of another `Jupyter`, to share
    ):
        self.settings, self.foreign, self.pages = {**SETTINGS, **(settings or {})}, [], {}
        self.server, self.browser, self.opened = None, browser, ExitStack()

    def __enter__(self):
        self.tmp = Path(tempfile.mkdtemp(prefix='browser.'))
        try:
            if self.browser is None: self.browser = self.opened.enter_context(chromium())
            self._serve()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _serve(self):
        for name, value in self.settings.items():
            path = self.tmp/f'settings/@jupyterlab/{name}.jupyterlab-settings'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        self.url = f'http://127.0.0.1:{free_port()}'
        self.token, self.root = secrets.token_hex(16), self.tmp/'notebooks'
        self.root.mkdir()
        env = {**environment(self.tmp), 'JUPYTERLAB_SETTINGS_DIR': str(self.tmp/'settings'),
               'JUPYTERLAB_WORKSPACES_DIR': str(self.tmp/'workspaces'), 'JUPYTER_TOKEN': self.token}
        options = {'ServerApp.ip': '127.0.0.1', 'ServerApp.port': self.url.split(':')[-1],
                   'ServerApp.port_retries': 0, 'ServerApp.root_dir': self.root,
                   'ServerApp.shutdown_no_activity_timeout': 900,      # in case that we are killed
                   'LabApp.expose_app_in_browser': True, 'JupyterNotebookApp.expose_app_in_browser': True,
                   'LabApp.news_url': None, 'LabApp.extension_manager': 'readonly',
                   'LabApp.check_for_updates_class': 'jupyterlab.handlers.announcements.NeverCheckForUpdate'}
        args = [f'--{k}={v}' for k, v in options.items()]
        self.server = serve([sys.executable, '-m', 'jupyterlab', '--allow-root', '--no-browser', *args],
                            self.tmp/'server.log', lambda: self._api('GET', 'status'), env=env)

    def _api(self, method, path):
        req = urllib.request.Request(f'{self.url}/api/{path}', method=method,
                                     headers={'Authorization': f'token {self.token}'})
        with urllib.request.urlopen(req, timeout=5) as r: return json.loads(r.read() or 'null')

    def page(self, app='lab', theme='light'):
        "The `Page` of an app, opened when it is first asked for, in this theme"
        if app not in self.pages: self.pages[app] = Page(self, app)
        self.pages[app].set_theme(theme)
        return self.pages[app]

    def __exit__(self, *exc):
        try:
            for o in self.pages.values(): o.page.close()
            self.opened.close()
        finally:
            if self.server: self._end_server()
            shutil.rmtree(self.tmp, ignore_errors=True)

    def _end_server(self):
        try:
            for k in self._api('GET', 'kernels'): self._api('DELETE', f'kernels/{k["id"]}')
        except OSError: pass
        for end in self.server.terminate, self.server.kill:
            end()
            try: return self.server.wait(10)
            except subprocess.TimeoutExpired: pass

class Page:
    """A notebook and its kernel; cells and outputs are counted from 0

    `page` is Playwright's; `js` evaluates in it, where `nb` is defined.
    """
    def __init__(self, jupyter, app):
        self.jupyter, self.path, self.console = jupyter, jupyter.root/f'{app}.ipynb', []
        self.url = f'{jupyter.url}/{URLS[app]}/{self.path.name}?token={jupyter.token}'
        spec = {'name': 'python3', 'display_name': 'python3', 'language': 'python'}
        self.path.write_text(json.dumps({'cells': [], 'metadata': {'kernelspec': spec}, 'nbformat': 4,
                                         'nbformat_minor': 5}))
        self.page = new_page(jupyter.browser, jupyter.url, jupyter.foreign)
        self.page.on('console', lambda o: self.console.append(f'{o.type}: {o.text}'))
        self.page.on('dialog', lambda o: o.accept())
        self.page.add_init_script(path=Path(__file__).with_name('page.js'))
        self.js = self.page.evaluate
        self.open()

    def open(self, busy=False):
        "Load the page (again) with the notebook that is on disk; its kernel, which may be `busy`, lives on"
        self.page.goto(self.url)
        self.until('nb.ready', busy)

    def until(self, js, arg=None): until(self.page, js, arg, self.console)

    def cells(self, *sources):
        "Replace all cells; a busy kernel is restarted"
        if not self.js('nb.idle()'): self.js('() => nb.kernel().restart()')
        self.js('nb.cells', sources)
        self.until('n => nb.ready() && nb.panel().content.widgets.length == n', len(sources))

    def start(self, k=0): self.js('nb.start', k)

    def wait(self): self.until('nb.idle')       # for the end of what was started

    def run(self, k=0):
        self.start(k)
        self.wait()

    def wait_text(self, text, k=0): self.until('([text, k]) => nb.area(k)?.innerText.includes(text)', [text, k])

    def changes(self, k=0):
        "Wait until a picture is there, and until it is another one"
        self.until(PICTURE, k)
        self.until('([k, before]) => nb.area(k)?.querySelector("img")?.outerHTML != before', [k, self.js(PICTURE, k)])

    def until_still(self, k=0, still_s=.3):
        "Wait until what a cell shows has not changed for a while"
        self.js('nb.stands = null')
        self.until('([k, s]) => nb.still_s(k) >= s', [k, still_s])

    def press(self, label, k=0):
        self.page.locator('.jp-Notebook .jp-Cell').nth(k).get_by_role('button', name=label, exact=True).last.click()

    def interrupt(self): self.page.click('.jp-NotebookPanel-toolbar [data-jp-item-name=interrupt]')

    def clear(self, k):
        self.js('k => { nb.select(k); return jupyterapp.commands.execute("notebook:clear-cell-output") }', k)

    def set_theme(self, theme):
        self.js('name => jupyterapp.commands.execute("apputils:change-theme", {theme: name})',
                f'JupyterLab {theme.title()}')
        self.until('light => document.body.dataset.jpThemeLight == light && nb.ready(true)',
                   str(theme == 'light').lower())

    def save(self):     # the notebook that is then on disk
        self.js('() => nb.panel().context.save()')
        import nbformat
        return nbformat.read(self.path, 4)

    def text(self, k=0): return self.js('k => nb.area(k)?.innerText || ""', k)

    def outputs(self, k=0): return self.js('k => nb.cell(k).model.outputs.toJSON()', k)     # as in nbformat

    def boxes(self, k=0):   # list of (left, top, right, bottom) of the outputs of a cell, px in the window
        return self.js('k => nb.parts(k).map(o => { const b = o.getBoundingClientRect();'
                       ' return [b.left, b.top, b.right, b.bottom] })', k)

    def shot(self, k, i=0):     # PNG as bytes, of output `i` of cell `k`
        return self.page.locator('.jp-Notebook .jp-Cell').nth(k).locator('.jp-OutputArea-child').nth(i).screenshot()

    def watch(self, k=0):
        "Look at the output of a cell at each animation frame, and film the window, until `seen`"
        self.js('nb.painted')
        self.frames, self.film = [], self.page.context.new_cdp_session(self.page)
        def take(o):
            self.frames.append((o['metadata']['timestamp'], b64decode(o['data'])))
            self.film.send('Page.screencastFrameAck', {'sessionId': o['sessionId']})
        self.film.on('Page.screencastFrame', take)
        self.film.send('Page.startScreencast', {'format': 'png'})
        self.js('nb.watch', k)

    def seen(self):     # dict: 'looks', 'frames'
        """What `watch` saw

        looks: dicts of time_s, height (px), n (outputs), waits (one shows nothing yet), svg (there is one), text;
        frames: (seconds, PNG), painted when something had changed.
        """
        self.js('nb.painted')
        looks = self.js('nb.seen')
        self.film.send('Page.stopScreencast')
        self.film.detach()
        return {'looks': looks, 'frames': sorted(self.frames)}      # they come out of order
