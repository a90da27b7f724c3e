"The lesson about images with fastai: python images.py FOLDER MODEL.pkl FILE"
import sys
from fastai.vision.all import *

folder, path, *files = map(Path, sys.argv[1:])

# train
set_seed(0)
dls = ImageDataLoaders.from_folder(folder, valid_pct=.2, seed=0, bs=64, img_cls=PILImageBW)
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                      nn.Flatten(), nn.Linear(1024, 10))
learn = Learner(dls, model, metrics=accuracy)
learn.fit(5, 3e-3)
learn.export(path)

# train, with a network of fastai
set_seed(0)
dls = ImageDataLoaders.from_folder(folder, valid_pct=.2, seed=0, bs=64)
learn = vision_learner(dls, resnet18, pretrained=False, metrics=accuracy)
learn.fit(5, 3e-3)
learn.export(path)

# predict
learn = load_learner(path)
print([learn.predict(o)[0] for o in files])
