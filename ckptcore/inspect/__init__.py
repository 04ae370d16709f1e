"""Looking into a run: what is there, what became of it, what could be resumed from, and why. Reads only."""
