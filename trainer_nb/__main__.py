"`python -m trainer_nb run|status|tail|runs|stop|pause|unpause|set-lr FOLDER`"
import sys

import trainer_nb.all       # noqa: F401   all verbs of a learner, for the one that a run unpickles
from trainer_nb.runs import main

sys.exit(main())
