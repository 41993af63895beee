"""`python -m scankv` is the `scankv` command."""

from scankv.cli import main

if __name__ == "__main__":
    main()
