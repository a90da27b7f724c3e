"The lesson about tables with fastai: python table.py FILE.csv MODEL.pkl NEW.csv"
import sys
import pandas as pd
from fastai.tabular.all import *

path, folder, file = map(Path, sys.argv[1:])

# train, with a network of fastai
set_seed(0)
dls = TabularDataLoaders.from_csv(path, y_names='late', y_block=CategoryBlock(), cat_names=['line', 'station'], seed=0,
                                  cont_names=['hour', 'wind_kmh', 'carriages'],
                                  procs=[Categorify, FillMissing, Normalize])
learn = tabular_learner(dls, layers=[64])
learn.fit(4, 3e-3)
learn.export(folder)

# predict
learn = load_learner(folder)
rows = pd.read_csv(file)
rows['late'] = learn.get_preds(dl=learn.dls.test_dl(rows))[0][:, 1]
print(rows[['line', 'station', 'late']].round(2))
