"""The cases: scenarios read from their files, checked and expanded."""
