"""Film a fit in JupyterLab for the front page of the site: `python tools/live_picture.py`

Writes `nbs/_static/live.webp`, and its last frame as `live.png` for readers who want no motion. Needs Chromium.
"""
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageChops

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root/'tests'))

from browser.lab import Jupyter

SETUP = '''
from time import sleep
from sklearn.datasets import load_digits
from trainer_nb.all import *

set_seed(42)
x, y = map(torch.tensor, load_digits(return_X_y=True))
train, valid = split((x.float()/16, y), valid=.2)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

def as_slow_as_a_large_model(learn): sleep(.15)

learn = Learner(model, train, valid, loss_fn=F.cross_entropy, lr=3e-3, metrics=accuracy,
                hooks=LambdaHook(after_step=as_slow_as_a_large_model))
'''
AREA = '''() => {     // without the space for the prompt
    const box = nb.area(1).getBoundingClientRect()
    const { left } = nb.area(1).querySelector('.jp-OutputArea-output').getBoundingClientRect()
    return [left, box.top, box.right, box.bottom] }'''
PLAIN = '.jp-Notebook * { box-shadow: none !important; outline: none !important; border-color: transparent !important }'
EVERY, SPEED, LAST = .4, 2, 3   # s between two frames; how much faster they are shown; s that the last one stays


def film():     # list of pictures
    "Take pictures of the cell's output until the fit ends"
    with Jupyter() as jupyter:
        page = jupyter.page()
        page.page.set_viewport_size({'width': 920, 'height': 1300})
        page.page.add_style_tag(content=PLAIN)
        page.cells(SETUP, 'learn.fit(6);')
        page.run(0)
        page.watch(1)
        page.start(1)
        page.wait()
        page.until_still(1)
        frames, area = page.seen()['frames'], page.js(AREA)
    res, last = [], 0
    for time_s, png in [*frames, (float('inf'), frames[-1][1])]:
        if time_s - last < EVERY: continue
        last = time_s
        res.append(Image.open(BytesIO(png)).convert('RGB').crop([round(o) for o in area]))
    return res


def moving(frames):
    "Leave out what shows nothing, or what stands still"
    white, res = Image.new('RGB', frames[0].size, 'white'), []
    for frame in frames:
        if ImageChops.difference(frame, res[-1] if res else white).getbbox(): res.append(frame)
    return res


frames = moving(film())
to = root/'nbs/_static'
durations = [int(1000*EVERY/SPEED)]*(len(frames) - 1) + [1000*LAST]
frames[0].save(to/'live.webp', save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=60,
               method=6)
frames[-1].save(to/'live.png', optimize=True)
print(f'{len(frames)} frames of {frames[0].size}, {(to/"live.webp").stat().st_size//1000} kB')
