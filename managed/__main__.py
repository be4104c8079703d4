"""`python -m managed`: what the command `managed` does too."""

from managed.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
