"""Parts of episodes that are concepts of their own.

Several agents:
    agent_segment: a segment of an agent: its single-agent episode, and what waits for its next observation.
    agent_column: a column of an agent by env step.
    env_step: one env step of several agents, validated.
    common_infos: infos of an environment that belong to no agent.

Acting from outside a runner:
    acting_rewards: rewards that a caller may not have given.

Any episode:
    episode: what episodes of one agent and of several have in common.
    packed_columns: episodes as a few arrays, for another process.
    arguments: validates and converts constructor arguments, and makes ids.
"""

__all__: list[str] = []
