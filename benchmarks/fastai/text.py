"The lesson about texts with fastai: python text.py FOLDER MODEL.pkl FILE"
import sys
from fastai.text.all import *

folder, path, *files = map(Path, sys.argv[1:])

# train
set_seed(0)
dls = TextDataLoaders.from_folder(folder, valid_pct=.2, seed=0, bs=64)
model = nn.Sequential(nn.Embedding(len(dls.vocab[0]), 32), nn.Unflatten(1, (1, -1)), nn.Conv2d(1, 64, (5, 32)),
                      nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 2))
learn = Learner(dls, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy)
learn.fit(3, .01)
learn.export(path)

# train, with a network of fastai
set_seed(0)
dls = TextDataLoaders.from_folder(folder, valid_pct=.2, seed=0, bs=64)
learn = text_classifier_learner(dls, AWD_LSTM, pretrained=False, metrics=accuracy)
learn.fit(3, 3e-3)
learn.export(path)

# predict
learn = load_learner(path)
print([learn.predict(o.read_text())[0] for o in files])
