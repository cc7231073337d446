"""Names of the columns that episodes and batches hold."""

from __future__ import annotations

__all__ = ["Columns"]


class Columns:
    """The column names that pieces, modules and losses agree on (the strings are RLlib's).

    Example:
        >>> Columns.OBS, Columns.ACTION_LOGP
        ('obs', 'action_logp')
    """

    OBS = "obs"
    INFOS = "infos"
    ACTIONS = "actions"
    ACTIONS_FOR_ENV = "actions_for_env"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    NEXT_OBS = "new_obs"
    EPS_ID = "eps_id"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    SEQ_LENS = "seq_lens"
    SEQ_OFFSETS = "seq_offsets"
    RESETS = "resets"
    RESET_STATES = "reset_states"
    T = "t"
    STATE_IN = "state_in"
    NEXT_STATE_IN = "next_state_in"
    NEXT_RESET_STATES = "next_reset_states"
    STATE_OUT = "state_out"
    NEXT_STATE_OUT = "next_state_out"
    EMBEDDINGS = "embeddings"
    ACTION_MASK = "action_mask"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_PROB = "action_prob"
    ACTION_LOGP = "action_logp"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    INTRINSIC_REWARDS = "intrinsic_rewards"
    RETURNS_TO_GO = "returns_to_go"
    LOSS_MASK = "loss_mask"
