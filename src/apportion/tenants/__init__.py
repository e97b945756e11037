"""The tenant tree, tokens, and the policies that operators add."""
