"""Cases carried out: jobs of processes, what they are asked, and whether what came of it is right."""
