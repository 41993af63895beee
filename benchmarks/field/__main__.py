"""Entry point of `python -m benchmarks.field`."""

if __name__ == "__main__":
    # Imported here, since every worker process imports this module again and needs nothing of the harness.
    from benchmarks.field.harness import main

    main()
