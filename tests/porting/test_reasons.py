from __future__ import annotations

import pytest

from epibatch.porting.reasons import reason_for


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("ray.rllib.utils.replay_buffers", "MultiAgentEpisodeReplayBuffer", "replay buffers"),
        ("ray.rllib.policy.sample_batch", "SampleBatch", "old API stack"),
        ("ray.rllib.policy.policy", "Policy", "old API stack"),
        ("ray.rllib.models", "ModelCatalog", "old API stack"),
        ("ray.rllib.connectors.agent.pipeline", "AgentConnectorPipeline", "old API stack"),
        ("ray.rllib.evaluation.rollout_worker", "RolloutWorker", "old API stack"),
        ("ray.rllib.utils.replay_buffers", "EpisodeReplayBuffer", "replay buffers"),
        ("ray.rllib.offline", "JsonReader", "offline data"),
        ("ray.rllib.utils.framework", "try_import_tf", "TensorFlow"),
        ("ray.rllib.utils.tf_utils", "explained_variance", "TensorFlow"),
        ("ray.rllib.algorithms.sac", "SACConfig", "PPO is"),
        ("ray.rllib.algorithms.dqn.dqn", "DQN", "PPO is"),
        ("ray.rllib.core.models.base", "Encoder", "write an RLModule"),
        ("ray.rllib.algorithms.ppo.ppo_catalog", "PPOCatalog", "write an RLModule"),
        ("ray.rllib.env.env_context", "EnvContext", "plain dict"),
        ("ray.rllib.utils.test_utils", "check", "assert_allclose"),
        ("ray.rllib.examples.utils", "add_rllib_example_script_args", "copy what you need"),
        ("ray.tune", "Tuner", "algo.train"),
        ("ray", "init", "no cluster"),
        ("ray.rllib.policy.sample_batch", "MultiAgentBatch", "old API stack"),
        ("ray.rllib.env.multi_agent_env", "MultiAgentEnvs", "the nearest is MultiAgentEnv"),
        ("ray", "serve", "nothing here takes the place"),
        ("ray.rllib.core", "COMPONENT_RL_MODULES", "no such name in epibatch.core"),
        ("ray.rllib.core", "Colums", "the nearest is Columns"),
        ("ray.rllib.core.rl_module.rl_module", "RLModuleSpecs", "the nearest is RLModuleSpec"),
    ],
)
def test_reasons(module, name, said):
    assert said in reason_for(module, name)
