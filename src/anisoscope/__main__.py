"""`python -m anisoscope` is the command line."""

from anisoscope.cli.main import main

if __name__ == "__main__":
    main()
