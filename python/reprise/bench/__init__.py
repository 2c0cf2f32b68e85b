"""Benchmarks. Each module has add_arguments(parser) and main(args) -> exit code; its first line is its help."""
