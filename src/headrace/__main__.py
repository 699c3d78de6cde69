"""`python -m headrace`: the same as the command `headrace`. Owns nothing."""

from headrace.cli import main

if __name__ == "__main__":
    main()
