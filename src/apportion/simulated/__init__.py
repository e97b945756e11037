"""Simulated nodes beside a server: machines in folders, each with an agent of its own."""
