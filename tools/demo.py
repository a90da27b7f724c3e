"""Run the quickstart, `nbs/start/02_quickstart.ipynb`, in a real kernel: `python tools/demo.py`

Leaves the executed notebook and an HTML page in `demo/`, prints the validation accuracy, and fails below 95 %.
"""
import re, sys
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

ENOUGH = .95
root = Path(__file__).resolve().parents[1]
out = root/'demo'


def run(nb):
    "Execute `nb` in `demo/`, and return the validation accuracy that it reached"
    specs = KernelSpecManager(kernel_dirs=[f'{sys.prefix}/share/jupyter/kernels'])      # those of this environment only
    client = NotebookClient(nb, km=AsyncKernelManager(kernel_spec_manager=specs), timeout=300,
                            resources={'metadata': {'path': out}}, extra_arguments=['--log-level=ERROR'])
    nb.cells.append(nbformat.v4.new_code_cell("float(learn.history.epochs['valid_accuracy'][-1])"))
    try: client.execute(cleanup_kc=True)
    finally: question = nb.cells.pop()
    return float(question.outputs[0].data['text/plain'])


def save(nb):
    "Store `nb` in `demo/`, with its links corrected for this folder"
    for c in nb.cells:
        if c.cell_type == 'markdown': c.source = re.sub(r'\]\((?!https?:|#)', '](../nbs/start/', c.source)
    nbformat.write(nb, out/'quickstart.ipynb')
    page, _ = HTMLExporter().from_notebook_node(nb)
    (out/'quickstart.html').write_text(page, encoding='utf-8')


nb = nbformat.read(root/'nbs/start/02_quickstart.ipynb', 4)
out.mkdir(exist_ok=True)
try: accuracy = run(nb)
except CellExecutionError as e:
    sys.exit(f'The quickstart failed in this cell; demo/quickstart.html shows how far it came.\n{e}')
finally: save(nb)
print(f'Validation accuracy: {accuracy:.1%}\nLook at demo/quickstart.html, or open demo/quickstart.ipynb in Jupyter.')
if accuracy < ENOUGH: sys.exit(f'That is less than the {ENOUGH:.0%} that the quickstart should reach.')
