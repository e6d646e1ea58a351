"""The same for those who await."""
