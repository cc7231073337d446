from . import report as report, source_files as source_files
from .rllib_names import module_here as module_here
from .ported_source import Leftover as Leftover, PortedSource as PortedSource, port_source as port_source
