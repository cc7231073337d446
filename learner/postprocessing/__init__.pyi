from . import episodes as episodes, value_predictions as value_predictions, zero_padding as zero_padding
