"""`python -m delaywheel`: the command without its console script."""

from delaywheel.main import main

if __name__ == "__main__":
    main()
