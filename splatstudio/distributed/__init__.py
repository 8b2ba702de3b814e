"""Many processes, one model: who takes part, and what they tell each other."""
