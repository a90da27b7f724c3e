"Everything is said in settings.ini; this hands it to setuptools."
import re, shlex
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

root = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

# a package index shows the README: pictures and links are those of this version
readme = re.sub(r'(!\[[^\]]*\]\()(?!https:)', rf'\1{cfg["git_url"]}/raw/v{cfg["version"]}/',
                (root/'README.md').read_text(encoding='utf-8'))
readme = re.sub(r'\]\((?!https:)', f']({cfg["git_url"]}/blob/v{cfg["version"]}/', readme)

# nbdev's index of links to pages, a quarter of the package, is for the pages of a clone: MANIFEST.in leaves it out
is_clone = (root/cfg['lib_path']/'_modidx.py').exists()

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'],
    author=cfg['author'], author_email=cfg['author_email'], license='Apache-2.0', url=cfg['git_url'],
    long_description=readme, long_description_content_type='text/markdown',
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path']+'.*']),
    package_data={cfg['lib_path']: shlex.split(cfg['package_data'])},
    python_requires='>='+cfg['min_python'],
    install_requires=shlex.split(cfg['requirements']),
    extras_require={k.removesuffix('_requirements'): shlex.split(v) for k, v in cfg.items()
                    if k.endswith('_requirements')},
    entry_points={'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"]} if is_clone else {},
)
