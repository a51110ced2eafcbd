"""The command without its console script: `python -m delaywheel`.

It is the file for `spark-submit delaywheel/__main__.py spark reconcile ...` as well.
"""

from delaywheel.main import main

if __name__ == "__main__":
    main()
