"""What this project measures of itself and of its peers. Not installed: it lies beside the code and needs a checkout."""
