"""Write what surrounds the pages: the sidebar, a Markdown twin of each page, `llms.txt`, and `sitemap.xml`"""
import re

from _names import homes, inner_pages, matching
from _pages import cfg

SIDEBAR = {     # heading → entries; pages with entries of their own name them
    'Start': ['start/*'], 'Lessons': ['lessons/0*', 'tutorials/0*'],
    'How-to': ['howto/00_recipes', 'howto/00_from_other_libraries'], 'Examples': ['examples/00_overview'],
    'API by task': ['99_all', 'api/*'], 'Internals': ['internals/00_inside'],
}
site = f'{cfg.doc_host}{cfg.doc_baseurl}/'


def section(docname):
    "Return the heading under which a page is found"
    if docname == 'index': return ''
    if docname in homes().values(): return 'Internals' if docname in inner_pages() else 'API by task'
    folder = docname.partition('/')[0]
    found = [o for o, entries in SIDEBAR.items() if folder in {e.partition('/')[0] for e in entries}]
    return found[0] if found else 'Internals'


def has_examples(): return len(matching('examples/*')) > 1


def contents():
    "Yield the tables of contents of the sidebar"
    for heading, patterns in SIDEBAR.items():
        entries = [page for pattern in patterns for page in matching(pattern)]
        if has_examples() or heading != 'Examples':
            yield '\n'.join(['```{toctree}', ':hidden:', f':caption: {heading}', '', *entries, '```'])


def fenced(text, language=''):
    fence = '`'*max(3, *(len(o) + 1 for o in re.findall('`+', text)), 3)
    return f'{fence}{language}\n{text.rstrip()}\n{fence}'


def plain(s):
    "Turn MyST into plain Markdown"
    s = re.sub(r'<!--.*?-->', '', s, flags=re.S)
    s = re.sub(r'^\([\w.-]+\)=\n?|^\{\.[\w-]+\}\n|\{\.(?:source-link|chart)\}', '', s, flags=re.M)
    s = re.sub(r'^:{3,}\{admonition\} (.*)\n:class: .*\n', r'**\1**\n', s, flags=re.M)
    s = re.sub(r'^:{3,}\{(\w+)\}.*$', lambda m: '' if m[1] == 'container' else f'**{m[1].title()}**', s, flags=re.M)
    s = re.sub(r'^```\{toctree\}.*?^```\n?', '', s, flags=re.M | re.S)
    return re.sub(r'\n{3,}', '\n\n', re.sub(r'^:{3,}$\n?', '', s, flags=re.M)).strip()


def shown(output):
    "Write an output as Markdown, with a mark for a picture"
    data = output.get('data', {})
    text = ''.join(output.get('text', data.get('text/plain', output.get('traceback', ''))))
    if 'image/png' in data: return '*(a picture)*'
    if 'text/markdown' in data: return ''.join(data['text/markdown'])
    return fenced(re.sub(r'\x1b\[[\d;]*m', '', text), 'text') if text.strip() else ''


def twin(nb):
    "Write a page in plain Markdown: text, code, and outputs"
    res = []
    for c in nb.cells:
        tags = c.metadata.get('tags', [])
        if c.cell_type == 'markdown': res.append(plain(c.source))
        if c.cell_type != 'code' or 'remove-cell' in tags: continue
        if 'remove-input' not in tags: res.append(fenced(c.source, 'python'))
        if 'remove-output' not in tags: res += map(shown, c.get('outputs', []))
    return '\n\n'.join(o for o in res if o) + '\n'


def with_links(text, labels, folder):
    "Turn links between pages into links between their twins"
    up = '../'*(folder.count('/') + bool(folder))
    def to(m): return f']({up}{labels[m[1]][0]}.md)' if m[1] in labels else m[0]
    text = re.sub(r'\]\(#([\w.-]+)\)', to, text)
    text = re.sub(r'\]\((?:\.\./)*images/', f']({up}_images/', text)
    return re.sub(r'\]\((?!\w+:)([\w./-]+)\.(?:ipynb|qmd)', r'](\1.md', text)


def write_site(app, error):
    "Write the twins, and two lists of all pages: for programs that read Markdown, and for search engines"
    if error or app.builder.name != 'html': return
    env = app.env
    labels = env.get_domain('std').anonlabels
    order, last = ['', *SIDEBAR], ''
    pages = sorted(env.twins, key=lambda o: (order.index(section(o)), o))
    lines = [f'# {cfg.title}', '', f'> {cfg.description}', '',
             f'`pip install git+{cfg.git_url}`, then `from {cfg.lib_name}.all import *`.']
    for name in pages:
        path = app.outdir/f'{name}.md'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_links(env.twins[name], labels, name.rpartition('/')[0]), encoding='utf-8')
        if section(name) != last: lines += ['', f'## {section(name)}', '']
        last = section(name)
        title, lead = env.titles[name].astext(), re.match(r'# .*\n+(?:> )?(.*)', env.twins[name])
        lines.append(f'- [{title}]({site}{name}.md)' + (f': {lead[1]}' if lead else ''))
    (app.outdir/'llms.txt').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    urls = '\n'.join(f'  <url><loc>{site}{name}.html</loc></url>' for name in pages)
    sitemap = ('<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
               f'{urls}\n</urlset>\n')
    (app.outdir/'sitemap.xml').write_text(sitemap, encoding='utf-8')
