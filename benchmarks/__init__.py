"""How fast epibatch is, side by side with RLlib and with plain NumPy and torch; see README.md in this folder."""
