"The lesson about segmentation with fastai: python segmentation.py FOLDER MODEL.pkl FILE MASK"
import sys
from fastai.vision.all import *

folder, path, file, out = map(Path, sys.argv[1:])

# train, with a network of fastai
set_seed(0)
files = get_image_files(folder/'pictures')
def mask_of(file): return folder/'masks'/file.name
dls = SegmentationDataLoaders.from_label_func(folder, files, mask_of, codes=['background', 'cell', 'rod'],
                                              seed=0, bs=16)
learn = unet_learner(dls, resnet18, pretrained=False, n_out=3)
learn.fit(3, 3e-3)
learn.export(path)

# predict
learn = load_learner(path)
mask = learn.predict(file)[0]
Image.fromarray(mask.byte().numpy()).save(out)
