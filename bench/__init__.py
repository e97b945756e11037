"""Benchmarks: each a module with ``run()`` that returns figures; results go to bench/results."""
