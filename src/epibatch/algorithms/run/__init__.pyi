from . import (
    error_reports as error_reports,
    learning_curves as learning_curves,
    playing as playing,
    recording as recording,
)
from . import training_run as training_run
