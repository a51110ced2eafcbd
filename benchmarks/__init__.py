"""What delaywheel costs and how fast it is, each figure beside a limit measured in the same run."""
