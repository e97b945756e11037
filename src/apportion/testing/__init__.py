"""Help for tests, of this project and of those who build on it."""
