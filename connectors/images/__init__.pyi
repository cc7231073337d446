# `make generated` writes the pieces that this package defines; other names are kept.

from .crops import CenterCrop as CenterCrop, Crop as Crop
from .grayscale import Grayscale as Grayscale
from .random_crop import RandomCrop as RandomCrop
from .resize import Resize as Resize
from .to_chw_float import ToCHWFloat as ToCHWFloat
from .video_recorder import VideoRecorder as VideoRecorder
