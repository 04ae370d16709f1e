"""Reports of a run: a table for a terminal, JUnit XML, and one HTML page. All are pure functions of `results.Run`."""
