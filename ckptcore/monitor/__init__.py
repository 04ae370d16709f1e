"""What a job tells of itself while it runs: metrics, and a verifier in the background."""
