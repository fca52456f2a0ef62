"""`python -m peeklock`: the command line."""

from peeklock.cli import main

if __name__ == "__main__":
    main(prog_name="peeklock")
