"""The loop: drawn groups in a buffer with a journal, and the rollouts that fill the steps of a trainer."""
