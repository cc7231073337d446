"""Names of sides that tables and targets know."""

OURS = "epibatch"
RLLIB = "RLlib"
FLOOR = "floor"
LEANEST = "leanest floor"
WITHOUT = "epibatch without the piece"
