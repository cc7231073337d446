"""The modules that run one call of a pipeline. docs/internals/engine.md follows a call through them.

Before a call:
    plan: checks the order of pieces; which of them work on columns, see bootstrap rows or write to episodes.
    checks: refuses arguments of a pipeline that cannot work.

The call:
    call: one call: its groups of chunks, and what its pieces share.
    chunks: a chunk group: the chunks of one module, with their keys, lengths and bootstrap rows.
    grouping: sorts the rows of several agents into groups, by module and spaces.
    run: runs the pieces of a plan, one after the other, and reports each to metrics, profiles and traces.
    layouts: columns to the plain dicts that user pieces get, and back.
    agent_copies: copies of a piece for agents with spaces or a state of their own.

What pieces make columns with:
    columns: a column: the rows of a group's chunks; and the batch of all groups.
    gather: columns out of the episodes: every step, or the newest rows.
    windows: rows some steps away from those of the batch, and the one check that no chunk lost any of them.
    sequences: chunks to padded sequences, by the module's settings.
    agent_table: the observation of each agent at each env step.
    batch_items: the static batch helpers of `ConnectorV2`.
"""

__all__: list[str] = []
