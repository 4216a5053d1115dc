"""``python -m keyedstate.cli`` is ``keyedstate``."""

from keyedstate.cli.app import main

if __name__ == "__main__":
    main()
