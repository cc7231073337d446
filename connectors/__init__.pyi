from ._engine.chunks import ChunkGroup as ChunkGroup
from ._engine.columns import EpisodeColumn as EpisodeColumn
from ._inspect.profile import (
    PieceCost as PieceCost,
    PipelineProfile as PipelineProfile,
    profile_pipelines as profile_pipelines,
)
from ._inspect.trace import PipelineTrace as PipelineTrace, TracedPiece as TracedPiece
from ._inspect.traced_columns import TracedColumn as TracedColumn
from .columnar_piece import ColumnarPiece as ColumnarPiece
from .connector_pipeline_v2 import ConnectorPipelineV2 as ConnectorPipelineV2
from .connector_v2 import ConnectorV2 as ConnectorV2
