"""`python -m benchmarks`."""

if __name__ == "__main__":
    # Every worker process imports this file again; it must not bring along more than the worker needs.
    from benchmarks.harness import main

    main()
