"""``python -m deepvm`` is the command ``deepvm``."""

from deepvm.cli.main import main

if __name__ == "__main__":
    main()
