"Benchmarks one after the other: `python benchmarks [name ...]`. Results go to `benchmarks/results`"
import ast, os, subprocess, sys
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ('overhead', 'digits', 'display', 'lr_find', 'checkpoint', 'compile', 'distributed', 'imports', 'runs',
         'compare', 'clicks')


def measured(name):  # str
    "A benchmark's description and results, in Markdown"
    title, _, how = ast.get_docstring(ast.parse((HERE/f'{name}.py').read_text(encoding='utf-8'))).partition('\n\n')
    res = subprocess.run([sys.executable, '-W', 'ignore', HERE/f'{name}.py'], stdout=subprocess.PIPE, text=True,
                         check=True)
    return f'## {title.split(": `")[0]}\n\n{how}\n\n{date.today()}, {os.cpu_count()} cores, {res.stdout.strip()}\n'


if __name__ == '__main__':
    for name in sys.argv[1:] or NAMES:
        text = measured(name)
        print(text, flush=True)
        (HERE/'results'/f'{name}.md').write_text(text, encoding='utf-8')
